// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	kubeevents "github.com/nri-vgpu/nri-vgpu/internal/kube/events"
	"github.com/nri-vgpu/nri-vgpu/internal/kube/pods"
)

// told collects the Events that a hook wrote.
type told struct {
	mu     sync.Mutex
	events []string
	room   []string
}

func (w *told) OnPod(pod kubeevents.Pod, reason kubeevents.Reason, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s/%s %s %s: ", pod.Namespace, pod.Name, pod.UID, reason.Name)+fmt.Sprintf(format, args...))
}

func (w *told) Refused(pod pods.Ref, container, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room = append(w.room, pod.UID+"/"+container+" refused: "+why[:20])
}

func (w *told) Granted(pod pods.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room = append(w.room, pod.UID+" granted")
}

func (w *told) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

func TestARefusalIsAnEventWithTheFreeCapacity(t *testing.T) {
	n := newNode(t)
	pod := n.pod("huge", "main=16385")
	if _, err := n.create("huge"); err == nil {
		t.Fatal("it was created")
	}
	want := []string{pod.Namespace + "/" + pod.Name + ` huge VGPURefused: container "main": no GPU has room for container "main" of pod ` +
		pod.Namespace + "/" + pod.Name + ", which requests 16385 MiB of one GPU; free: " +
		"GPU 0 (" + gpuA + "): 16384 MiB, 100 % of the time, 10 slots; GPU 1 (" + gpuB + "): 16384 MiB, 100 % of the time, 10 slots"}
	if diff := cmp.Diff(want, n.told.all()); diff != "" {
		t.Error(diff)
	}
}

func TestAnEventAboutAStaticPodIsOnItsMirror(t *testing.T) {
	n := newNode(t)
	mirror := n.pod("mirror", "main=16385")
	n.api.change(func() { n.api.pods["hash"] = mirror })
	if _, err := n.create("hash"); err == nil {
		t.Fatal("it was created")
	}
	events := n.told.all()
	if len(events) != 1 || !strings.Contains(events[0], " mirror VGPURefused: ") {
		t.Errorf("got %q", events)
	}
}

// TestRefusalsAndGrantsAreReported checks that only refusals of pods without room reach the
// evictor.
func TestRefusalsAndGrantsAreReported(t *testing.T) {
	n := newNode(t)
	n.pod("huge", "main=16385")
	n.pod("small", "main=1024")
	twice := n.pod("two-dialects", "main=1024")
	twice.Spec.Containers[0].Resources.Limits["alnair/vgpu-memory"] = resource.MustParse("1")
	for uid, refused := range map[string]bool{"huge": true, "small": false, "two-dialects": true} {
		if _, err := n.create(uid); (err != nil) != refused {
			t.Fatalf("%s: got %v", uid, err)
		}
	}
	slices.Sort(n.told.room)
	if diff := cmp.Diff([]string{"huge/main refused: no GPU has room for ", "small granted"}, n.told.room); diff != "" {
		t.Error(diff)
	}
}

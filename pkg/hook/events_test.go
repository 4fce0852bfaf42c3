package hook

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeevents "github.com/nri-vgpu/nri-vgpu/pkg/events"
)

// told are the Events that a hook wrote.
type told struct {
	mu     sync.Mutex
	events []string
}

func (w *told) OnPod(pod kubeevents.Pod, reason kubeevents.Reason, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s/%s %s %s: ", pod.Namespace, pod.Name, pod.UID, reason.Name)+fmt.Sprintf(format, args...))
}

func (w *told) all() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

func TestARefusalIsAnEventThatSaysWhatWasFree(t *testing.T) {
	n := newNode(t)
	pod := n.pod("huge", "main=16385")
	if _, err := n.create("huge"); err == nil {
		t.Fatal("it was created")
	}
	want := []string{pod.Namespace + "/" + pod.Name + ` huge VGPURefused: container "main": no GPU has room for container "main" of pod ` +
		pod.Namespace + "/" + pod.Name + ", which asks for 16385 MiB of one GPU; free: " +
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

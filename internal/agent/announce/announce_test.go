// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/assign"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// world is a node with two GPUs, as the Announcer sees the node.
type world struct {
	t      *testing.T
	cfg    config.Config
	client *fake.Clientset
	ledger *placement.Ledger
	synced bool
	order  []string // of the pods that Reserve was called for
	broken error    // of Reserve
	log    bytes.Buffer
}

func newWorld(t *testing.T, all ...*corev1.Pod) *world {
	cfg := config.Default()
	cfg.Scheduling.Mode = config.ScheduleByPlugin
	w := &world{t: t, cfg: cfg, client: fake.NewClientset(), synced: true}
	gpus := []gpu.GPU{{UUID: "GPU-0", MemoryBytes: 16 << 30, Healthy: true}, {UUID: "GPU-1", Index: 1, MemoryBytes: 16 << 30, Healthy: true}}
	w.ledger = placement.New(gpus, cfg)
	for _, pod := range all {
		if _, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) List() []*corev1.Pod {
	list, err := w.client.CoreV1().Pods("ns").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var all []*corev1.Pod
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

func (w *world) HasSynced() bool { return w.synced }

func (w *world) Reserve(pod *corev1.Pod) error {
	w.order = append(w.order, pod.Name)
	if w.broken != nil {
		return w.broken
	}
	asked, err := request.Read(pod, w.cfg)
	if err != nil {
		return err
	}
	for _, c := range asked.Containers {
		if c.Asks() {
			_, err := w.ledger.Place(asked, c.Name)
			return err
		}
	}
	return nil
}

func (w *world) Held(uid string) []placement.Allocation { return w.ledger.Pod(uid) }

func (w *world) announcer() *Announcer {
	return New(Options{Client: w.client, Config: w.cfg, Pods: w, Places: w, Log: slog.New(slog.NewTextHandler(&w.log, nil))})
}

func (w *world) assignment(name string) string {
	pod, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return pod.Annotations[assign.Annotation]
}

func (w *world) patches() (all []clienttesting.PatchAction) {
	for _, action := range w.client.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok {
			all = append(all, patch)
		}
	}
	return all
}

// pod returns a pod whose containers each request memory in MiB; 0: none.
func pod(name string, age time.Duration, memory ...int64) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age)),
	}}
	for i, mib := range memory {
		c := corev1.Container{Name: fmt.Sprint("c", i)}
		if mib > 0 {
			c.Resources.Limits = corev1.ResourceList{"nri-vgpu.io/vgpu-memory": *resource.NewQuantity(mib, resource.DecimalSI)}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

func TestChoicesAreAnnounced(t *testing.T) {
	bound := pod("bound", 0, 1024)
	bound.Annotations = map[string]string{assign.Annotation: `{"c0":["GPU-0"]}`}
	deleted := pod("deleted", 0, 1024)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
	deleted.Finalizers = []string{"example.com/keep"}
	ended := pod("ended", 0, 1024)
	ended.Status.Phase = corev1.PodSucceeded
	w := newWorld(t, pod("plain", 0, 0), pod("foreign", 0, 1024, 0, 2048), bound, pod("large", 0, 1<<20), deleted, ended)
	a := w.announcer()
	a.round(t.Context())
	for name, want := range map[string]string{
		"plain": "", "foreign": `{"c0":["GPU-0"],"c2":["GPU-0"]}`, "bound": `{"c0":["GPU-0"]}`, "large": "", "deleted": "", "ended": "",
	} {
		if got := w.assignment(name); got != want {
			t.Errorf("pod %s has assignment %q, want %q", name, got, want)
		}
	}
	patches := w.patches()
	if len(patches) != 1 || patches[0].GetSubresource() != "status" || !strings.Contains(string(patches[0].GetPatch()), `"uid":"uid-foreign"`) {
		t.Errorf("patches: %v", patches)
	}
	a.round(t.Context())
	if again := w.patches(); len(again) != 1 {
		t.Errorf("a second round wrote again: %v", again)
	}
	if w.log.Len() > 0 {
		t.Errorf("logged: %s", w.log.String())
	}
}

// TestADeletedPodIsAnnouncedIfItHoldsGPUs checks that the Announcer announces a pod that is being
// deleted, because the pod holds its GPUs until it has ended.
func TestADeletedPodIsAnnouncedIfItHoldsGPUs(t *testing.T) {
	deleted := pod("deleted", 0, 1024)
	deleted.Finalizers = []string{"example.com/keep"}
	w := newWorld(t, deleted)
	if err := w.Reserve(deleted); err != nil {
		t.Fatal(err)
	}
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)}
	if _, err := w.client.CoreV1().Pods("ns").Update(t.Context(), deleted, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.announcer().round(t.Context())
	if got := w.assignment("deleted"); got != `{"c0":["GPU-0"]}` {
		t.Errorf("assignment %q", got)
	}
}

// TestAssignedPodsComeFirst checks that assigned pods get their GPUs before others, and older pods
// before younger ones.
func TestAssignedPodsComeFirst(t *testing.T) {
	assigned := pod("assigned", 0, 1)
	assigned.Annotations = map[string]string{assign.Annotation: `{"c0":["GPU-0"]}`}
	w := newWorld(t, pod("a-young", time.Second, 1), pod("b-old", time.Hour, 1), assigned, pod("c-old", time.Hour, 1))
	w.announcer().round(t.Context())
	if want := []string{"assigned", "b-old", "c-old", "a-young"}; !slices.Equal(w.order, want) {
		t.Errorf("the order is %v, want %v", w.order, want)
	}
}

// TestFit checks that in the mode fit the Announcer allocates GPUs and writes nothing.
func TestFit(t *testing.T) {
	w := newWorld(t, pod("bound", 0, 1024))
	w.cfg.Scheduling.Mode = config.ScheduleByFit
	a := w.announcer()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Run(ctx)
	}()
	a.Poke()
	eventually.Holds(t, 5*time.Second, "the pod has a GPU", func() bool { return len(w.Held("uid-bound")) == 1 })
	cancel()
	<-done
	if patches := w.patches(); len(patches) > 0 {
		t.Errorf("patches: %v", patches)
	}
}

func TestFailuresAreLoggedOnceAndRetried(t *testing.T) {
	w := newWorld(t, pod("foreign", 0, 1024))
	broken := true
	w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken, nil, errors.New("the API server is away")
	})
	a := w.announcer()
	a.round(t.Context())
	a.round(t.Context())
	if got := strings.Count(w.log.String(), "the API server is away"); got != 1 {
		t.Errorf("logged %d times:\n%s", got, w.log.String())
	}
	if got := len(w.patches()); got != 1 {
		t.Errorf("%d requests were sent without a pause", got)
	}
	broken = false
	clear(a.next) // the pause has passed
	a.round(t.Context())
	if got := w.assignment("foreign"); got != `{"c0":["GPU-0"]}` {
		t.Errorf("assignment %q", got)
	}
	if err := w.client.CoreV1().Pods("ns").Delete(t.Context(), "foreign", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	a.failures["uid-foreign"], a.next["uid-foreign"] = "x", time.Now()
	a.round(t.Context())
	if len(a.failures)+len(a.next) > 0 {
		t.Errorf("the failures of a deleted pod are kept: %v", a.failures)
	}
}

// TestAFailureDelaysNoOtherPod checks that pods that come after a failed pod in the order are
// announced during the pause of the failed pod.
func TestAFailureDelaysNoOtherPod(t *testing.T) {
	w := newWorld(t, pod("fails", time.Hour, 1024))
	w.client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.(clienttesting.PatchAction).GetName() == "fails", nil, errors.New("the API server is away")
	})
	a := w.announcer()
	a.round(t.Context())
	if _, err := w.client.CoreV1().Pods("ns").Create(t.Context(), pod("later", 0, 1024), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.round(t.Context())
	if got := w.assignment("later"); got != `{"c0":["GPU-0"]}` {
		t.Errorf("assignment %q", got)
	}
}

// TestGPUsThatCannotBeReservedAreAFailure checks that the Announcer logs errors of Reserve, except
// the lack of room on every GPU. If no GPU has room, the node refuses the pod, and Events report
// the refusal.
func TestGPUsThatCannotBeReservedAreAFailure(t *testing.T) {
	assigned := pod("assigned", 0, 1024)
	assigned.Annotations = map[string]string{assign.Annotation: `{"c0":["GPU-0"]}`}
	for _, p := range []*corev1.Pod{pod("foreign", 0, 1024), assigned} {
		w := newWorld(t, p)
		w.broken = errors.New("the disk is full")
		a := w.announcer()
		a.round(t.Context())
		if len(w.patches()) > 0 || !strings.Contains(w.log.String(), "pod="+p.Name+" error=\"the disk is full\"") {
			t.Errorf("pod %s: patches %v, logged: %s", p.Name, w.patches(), w.log.String())
		}
	}
}

func TestRun(t *testing.T) {
	for name, test := range map[string]struct {
		mode      string
		synced    bool
		poke      bool
		wait      time.Duration
		announced bool
	}{
		"at a poke":                     {config.ScheduleByPlugin, true, true, time.Second, true},
		"without a poke, not yet":       {config.ScheduleByPlugin, true, false, 5*time.Second - 1, false},
		"without a poke":                {config.ScheduleByPlugin, true, false, 5 * time.Second, true},
		"before the pods are known":     {config.ScheduleByPlugin, false, true, 3 * interval, false},
		"in another mode of scheduling": {config.ScheduleBySums, true, true, 3 * interval, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, pod("foreign", 0, 1024))
				w.synced, w.cfg.Scheduling.Mode = test.synced, test.mode
				a := w.announcer()
				go a.Run(t.Context())
				if test.poke {
					a.Poke()
				}
				time.Sleep(test.wait)
				synctest.Wait()
				if got := w.assignment("foreign") != ""; got != test.announced {
					t.Errorf("announced: %t, want %t", got, test.announced)
				}
			})
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package resize

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/resize"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

type staleWorld struct {
	*world
	list []*corev1.Pod
}

func (s *staleWorld) List() []*corev1.Pod { return s.list }

// TestConditionsOfSeveralContainers checks that an infeasible size hides no deferred size, and that a
// condition keeps its time.
func TestConditionsOfSeveralContainers(t *testing.T) {
	reports := map[string]resize.Report{
		"a": {Pending: resize.Infeasible, Message: "never"}, "b": {Pending: resize.Deferred, Message: "later"},
		"c": {}, "d": {Pending: resize.InProgress, Message: "broken"}, "e": {Pending: resize.InProgress, Message: "too"},
	}
	want := []corev1.PodCondition{
		{Type: resize.ConditionPending, Status: corev1.ConditionTrue, Reason: "Infeasible", Message: "container a: never; container b: later"},
		{Type: resize.ConditionInProgress, Status: corev1.ConditionTrue, Reason: "InProgress", Message: "container d: broken; container e: too"},
	}
	for name, tt := range map[string]struct {
		before map[string]resize.Report
		timed  []bool
	}{
		"nothing before":       {nil, []bool{true, true}},
		"a deferred size":      {map[string]resize.Report{"x": {Pending: resize.Deferred}, "y": {}}, []bool{false, true}},
		"an unwritten size":    {map[string]resize.Report{"x": {Pending: resize.InProgress}}, []bool{true, false}},
		"a size that was done": {map[string]resize.Report{"x": {Size: resize.Size{Cores: 1}}}, []bool{true, true}},
	} {
		got := conditions(tt.before, reports)
		for i := range got {
			if got[i].LastTransitionTime.IsZero() == tt.timed[i] {
				t.Errorf("%s: condition %s has time %v", name, got[i].Type, got[i].LastTransitionTime)
			}
			got[i].LastTransitionTime = metav1.Time{}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: conditions (-want +got):\n%s", name, diff)
		}
	}
}

// TestMessagesAreCut checks that a long annotation makes no long report.
func TestMessagesAreCut(t *testing.T) {
	w := newWorld(t, asking("p", [2]int64{4096, 30}, [2]int64{16, 1}))
	w.want("p", `{"`+strings.Repeat("é", 30000)+`":{"memory":1}}`)
	w.round()
	p := w.pod("p")
	reports := resize.Reports(p)
	if len(reports) != 2 || len(p.Annotations[resize.ReportAnnotation]) > 1024 || len(reports["a"].Message) > mostMessage || !strings.HasSuffix(reports["a"].Message, "…") {
		t.Errorf("reported %+v", reports)
	}
	if c := w.conditions(); len(c) != 1 || len(c[0]) > mostCondition+64 {
		t.Errorf("conditions %q", c)
	}
}

// TestReportsDelayNoSizes checks that a size is set while the API server does not answer a report.
func TestReportsDelayNoSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, asking("p", [2]int64{4096, 30}), asking("q", [2]int64{4096, 30}))
		answers := make(chan bool)
		w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			<-answers
			return false, nil, nil
		})
		stale := &staleWorld{world: w}
		w.resizer.Pods = stale
		w.want("p", `{"a":{"memory":1024}}`)
		stale.list = w.List()
		go w.resizer.Run(t.Context())
		w.resizer.Poke()
		synctest.Wait()
		for i := range stale.list {
			if stale.list[i].Name == "q" {
				stale.list[i].Annotations = map[string]string{resize.Annotation: `{"a":{"memory":2048}}`}
			}
		}
		w.resizer.Poke()
		synctest.Wait()
		if w.holds("p", "a") != "1024/30" || w.holds("q", "a") != "2048/30" {
			t.Errorf("hold %s and %s", w.holds("p", "a"), w.holds("q", "a"))
		}
		close(answers)
	})
}

// TestReportOfUnlikeGPUs checks that the size is reported if it differs from the spec on any GPU.
func TestReportOfUnlikeGPUs(t *testing.T) {
	p := asking("p")
	p.Spec.Containers = []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		"volcano.sh/vgpu-number": resource.MustParse("2"), "volcano.sh/vgpu-memory-percentage": resource.MustParse("50"),
	}}}}
	w := newWorld(t)
	w.resizer.Config.Resize.Maximum = []config.ResizeMaximum{{Namespace: "ns", MemoryMiB: 16384}}
	w.ledger.SetGPUs([]gpu.GPU{{UUID: "GPU-0", MemoryBytes: 24 << 30, Healthy: true}, {UUID: "GPU-1", Index: 1, MemoryBytes: 16 << 30, Healthy: true}})
	if _, err := w.client.CoreV1().Pods("ns").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	asked, err := request.Read(p, w.resizer.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.ledger.Place(asked, "a"); err != nil {
		t.Fatal(err)
	}
	w.want("p", `{"a":{"memory":12288}}`)
	w.round()
	if got := resize.Reports(w.pod("p"))["a"]; got.MemoryMiB != 12288 || got.Pending != "" {
		t.Errorf("reported %+v", got)
	}
}

// TestReportOnAGPUThatHasLost checks that the size of a container is reported if its GPU has less memory
// than the pod's spec requests.
func TestReportOnAGPUThatHasLost(t *testing.T) {
	w := newWorld(t, asking("p", [2]int64{8192, 30}))
	w.want("p", `{"a":{"memory":4096}}`)
	w.round()
	w.ledger.SetGPUs([]gpu.GPU{{UUID: "GPU-0", MemoryBytes: 6 << 30, Healthy: true}})
	w.want("p", `{"a":{"memory":2048}}`)
	w.round()
	want := resize.Report{Size: resize.Size{MemoryMiB: 2048, Cores: 30}, Requested: resize.Size{MemoryMiB: 2048}}
	if got := resize.Reports(w.pod("p"))["a"]; got != want || w.holds("p", "a") != "2048/30" {
		t.Errorf("reported %+v, holds %s", got, w.holds("p", "a"))
	}
}

// heldWorld holds one part of a GPU, which differs from the part that the spec requests.
type heldWorld struct {
	*world
	held placement.Device
}

func (h *heldWorld) Held(string) []placement.Allocation {
	return []placement.Allocation{{Container: "a", Devices: []placement.Device{h.held}}}
}

func (h *heldWorld) PlanResize(string, string, []request.Share) (placement.Allocation, error) {
	return placement.Allocation{Container: "a", Devices: make([]placement.Device, 1)}, nil
}

// TestReportedSizesAreRoundedUp checks that schedulers count no less than a container holds.
func TestReportedSizesAreRoundedUp(t *testing.T) {
	for held, want := range map[placement.Device]resize.Size{
		{MemoryBytes: 2 * request.MiB, ComputePPM: 20_000}:    {MemoryMiB: 2, Cores: 2},
		{MemoryBytes: 2*request.MiB + 1, ComputePPM: 20_001}:  {MemoryMiB: 3, Cores: 3},
		{MemoryBytes: 3*request.MiB - 1, ComputePPM: 29_999}:  {MemoryMiB: 3, Cores: 3},
		{MemoryBytes: request.MiB, ComputePPM: request.Whole}: {MemoryMiB: 1, Cores: 100},
		{MemoryBytes: 1, ComputePPM: 1}:                       {MemoryMiB: 1, Cores: 1},
	} {
		w := &heldWorld{newWorld(t), held}
		w.resizer.Places, w.resizer.Ledger = w, w
		if got := w.resizer.sizeOf(&pod{uid: "p"}, &container{name: "a"}); got != want {
			t.Errorf("allocations %+v: reported %+v, want %+v", held, got, want)
		}
	}
}

// TestReportsAreRetried checks that a failed report is logged once and written later.
func TestReportsAreRetried(t *testing.T) {
	w := newWorld(t, asking("p", [2]int64{4096, 30}))
	down := true
	w.client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return down, nil, errors.New("away")
	})
	w.want("p", `{"a":{"memory":1024}}`)
	w.round()
	w.round()
	if got := strings.Count(w.log.String(), "failed to report"); got != 1 || w.holds("p", "a") != "1024/30" || len(w.told) != 0 {
		t.Errorf("holds %s, Events %q, log %s", w.holds("p", "a"), w.told, w.log.String())
	}
	down = false
	w.round()
	if got := w.pod("p").Annotations[resize.ReportAnnotation]; got != `{"a":{"memory":1024,"requested":{"memory":1024}}}` || len(w.told) != 1 {
		t.Errorf("reported %q, Events %q", got, w.told)
	}
	if err := w.client.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.round()
	if len(w.resizer.reported)+len(w.resizer.unreported) != 0 {
		t.Errorf("remembers %v, %v", w.resizer.reported, w.resizer.unreported)
	}
}

// TestStaleViewsAreNotReportedTwice checks that a report is not repeated until the watch has delivered it.
func TestStaleViewsAreNotReportedTwice(t *testing.T) {
	w := newWorld(t, asking("p", [2]int64{4096, 30}))
	w.want("p", `{"a":{"memory":1024}}`)
	before := w.List()
	stale := &staleWorld{world: w, list: before}
	w.resizer.Pods = stale
	w.round()
	w.round()
	if w.patches() != 1 {
		t.Errorf("%d writes", w.patches())
	}
}

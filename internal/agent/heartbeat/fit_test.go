// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nri-vgpu/nri-vgpu/internal/kube/choice"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
	"github.com/nri-vgpu/nri-vgpu/test/documented"
)

func fitSite(t *testing.T, gpus int, policy string) *site {
	cfg := config.Default()
	cfg.Scheduling.Mode, cfg.Placement.Policy = config.ScheduleByFit, policy
	var all []gpu.GPU
	for i := range gpus {
		all = append(all, gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, MemoryBytes: 16 << 30, Healthy: true})
	}
	return newSite(t, cfg, all)
}

// TestFitIsReportedAtOnce checks that in the mode fit each change of the free capacity, or of the
// pods, is urgent.
func TestFitIsReportedAtOnce(t *testing.T) {
	s := fitSite(t, 2, config.PlaceBinpack)
	empty := s.heartbeat.sums(s.gpus)
	if urgent(empty, s.heartbeat.sums(s.gpus)) {
		t.Error("nothing has changed, and the report is urgent")
	}
	pod := podAsking("pod", units{memory: 4096, request.FitTurn: 1})
	if !s.schedule(pod) {
		t.Fatal("the pod does not fit")
	}
	bound := s.heartbeat.sums(s.gpus)
	if !urgent(empty, bound) || bound.Used[request.FitTurn] != 1 {
		t.Errorf("a bound pod is not reported: %+v", bound)
	}
	if err := s.start(pod); err != nil {
		t.Fatal(err)
	}
	if urgent(bound, s.heartbeat.sums(s.gpus)) {
		t.Error("a start changes nothing, and the report is urgent")
	}
	s.remove(pod)
	if !urgent(bound, s.heartbeat.sums(s.gpus)) {
		t.Error("the capacity that is free again is not reported")
	}
	s.heartbeat.Config.Scheduling.Mode = config.ScheduleBySums
	if sums := s.heartbeat.sums(s.gpus); sums.Fit != nil || urgent(bound, sums) {
		t.Errorf("in the mode sums the report of more free capacity is urgent: %+v", sums)
	}
}

// fits reports whether the scheduler binds a pod of a shape by the Node's labels and by the labels of
// the agent's pod.
func (s *site) fits(shape string) bool {
	fit := s.heartbeat.sums(s.gpus).Fit
	if fit.Labels[request.FitHeld+shape] != "" {
		return !slices.Contains(fit.Full, shape)
	}
	var gpus int
	var mib, percent, cores int64
	if _, err := fmt.Sscanf(shape, "%d-%d-%d-%d", &gpus, &mib, &percent, &cores); err != nil {
		s.Fatal(err)
	}
	for _, n := range request.FitCounts() {
		if n < gpus {
			continue
		}
		for _, size := range request.FitSizes() {
			value := func(dimension string) int64 {
				v, err := strconv.ParseInt(fit.Labels[fmt.Sprint(request.FitPrefix, n, size, "-", dimension)], 10, 64)
				if err != nil {
					return -1
				}
				return v
			}
			if value("memory") >= mib && value("percent") >= percent && value("cores") >= cores {
				return true
			}
		}
		return false
	}
	return false
}

// shaped adds the condition of the policy to a pod.
func shaped(pod *corev1.Pod, shape string) *corev1.Pod {
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: request.FitHeld + shape, Operator: corev1.NodeSelectorOpExists},
		}}},
	}}}
	return pod
}

// TestFitKeepsTheConditionsOfPods checks that the labels contain the shape of each pod of the node,
// and that shapes without room are full.
func TestFitKeepsTheConditionsOfPods(t *testing.T) {
	s := fitSite(t, 1, config.PlaceBinpack)
	held := func() string {
		fit := s.heartbeat.sums(s.gpus).Fit
		var held []string
		for label := range fit.Labels {
			if shape, ok := strings.CutPrefix(label, request.FitHeld); ok {
				held = append(held, shape)
			}
		}
		slices.Sort(held)
		return fmt.Sprint(held, fit.Full)
	}
	large := shaped(podAsking("large", units{memory: 9000}), "1-9000-0-0")
	small := shaped(podAsking("small", units{memory: 3000}), "1-3000-0-0")
	for _, step := range []struct {
		do   func() bool
		want string
	}{
		{func() bool { return true }, "[] []"},
		{func() bool { return s.schedule(large) }, "[1-9000-0-0] [1-9000-0-0]"},
		{func() bool { return s.schedule(small) }, "[1-3000-0-0 1-9000-0-0] [1-9000-0-0]"},
		{func() bool { return s.start(large) == nil && s.start(small) == nil }, "[1-3000-0-0 1-9000-0-0] [1-9000-0-0]"},
		{func() bool { s.remove(large); return true }, "[1-3000-0-0] []"},
		{func() bool { return s.schedule(podAsking("without the policy", units{memory: 13000})) }, "[1-3000-0-0] [1-3000-0-0]"},
	} {
		if !step.do() {
			t.Fatalf("before %s: a pod does not fit", step.want)
		}
		if got := held(); got != step.want {
			t.Errorf("the held and the full shapes are %s, want %s", got, step.want)
		}
	}
}

// TestFitBoundsShapes checks that the labels contain the shapes of the oldest pods, and that the Node
// offers no turn beyond the bound.
func TestFitBoundsShapes(t *testing.T) {
	documented.Bound(t, "shapes of pods in labels, with the mode `fit`", documented.Count(mostShapes))
	begin := time.Now()
	var asking []*corev1.Pod
	for i := range mostShapes {
		pod := shaped(podAsking(fmt.Sprint("pod", i), units{memory: 1}), fmt.Sprintf("1-%d-0-0", i+1))
		pod.CreationTimestamp = metav1.NewTime(begin.Add(-time.Duration(i) * time.Second))
		asking = append(asking, pod)
	}
	if f := fit(nil, asking); f.Closed || len(f.Labels) != mostShapes || len(f.Full) != mostShapes {
		t.Errorf("closed is %t with %d labels, and %d shapes are full", f.Closed, len(f.Labels), len(f.Full))
	}
	young := shaped(podAsking("young", units{memory: 1}), "1-9999-0-0")
	young.CreationTimestamp = metav1.NewTime(begin.Add(time.Second))
	f := fit(nil, append([]*corev1.Pod{young}, asking...))
	if !f.Closed || len(f.Labels) != mostShapes || f.Labels[request.FitHeld+"1-9999-0-0"] != "" {
		t.Errorf("closed is %t with %d labels: %v", f.Closed, len(f.Labels), f.Labels)
	}
}

// TestFitOffersNoTurnUnpublished checks that the Node must offer no turn if the labels of the agent's
// pod are not up to date.
func TestFitOffersNoTurnUnpublished(t *testing.T) {
	s := fitSite(t, 1, config.PlaceBinpack)
	failure := errors.New("the API server is away")
	s.heartbeat.Full = func(context.Context, []string) error { return failure }
	for _, want := range []bool{true, true, false} {
		if !want {
			failure = nil
		}
		sums := s.heartbeat.sums(s.gpus)
		s.heartbeat.publishFull(t.Context(), sums)
		if sums.Fit.Closed != want {
			t.Errorf("closed is %t after %v", sums.Fit.Closed, failure)
		}
	}
}

// TestFitReportsWithin checks that in the mode fit a binding is in the report at once, although the API
// server answers slowly. Bindings within nodereport.Pause share a write. The end of a pod is in the
// report after nodereport.Pause, with the bindings that it has caused.
func TestFitReportsWithin(t *testing.T) {
	const answers = 40 * time.Millisecond // of the API server
	synctest.Test(t, func(t *testing.T) {
		s := fitSite(t, 2, config.PlaceSpread)
		h := s.heartbeat
		h.Config.Paths.RunDir = t.TempDir()
		writes := 0
		h.Full = func(context.Context, []string) error { writes++; time.Sleep(answers); return nil }
		h.Changed = func([]gpu.GPU) error { return nil }
		h.Inventory = &node{gpus: s.gpus}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); h.Run(ctx) }()
		time.Sleep(Interval / 2) // between two rounds
		made := 0
		bind := func() {
			t.Helper()
			made++
			pod := shaped(podAsking(fmt.Sprint("pod", made), units{memory: 1000, request.FitTurn: 1}), "1-1000-0-0")
			if !s.schedule(pod) {
				t.Fatal("the pod does not fit")
			}
			h.PodsChanged()
		}
		check := func(pods, written int) {
			t.Helper()
			synctest.Wait()
			report, err := nodereport.Read(filepath.Join(h.Config.Paths.RunDir, nodereport.FileName))
			if err != nil {
				t.Fatal(err)
			}
			if turns := report.Sums.Used[request.FitTurn]; turns != int64(pods) || writes != written {
				t.Errorf("with %d pods the report contains %d pods after %d writes, want %d pods and %d writes", len(s.pods), turns, writes, pods, written)
			}
		}
		for range 4 {
			before := writes
			bind()
			time.Sleep(answers)
			check(len(s.pods), before+1)
			for range 3 {
				bind()
				time.Sleep(answers / 4)
			}
			check(len(s.pods)-3, before+1)
			time.Sleep(nodereport.Pause)
			check(len(s.pods), before+2)
			time.Sleep(nodereport.Pause)
		}
		for range 3 {
			before := writes
			s.remove(s.pods[0])
			h.PodsChanged()
			time.Sleep(nodereport.Pause - answers)
			check(len(s.pods)+1, before) // the scheduler may bind two pods until the Node takes the turn back
			time.Sleep(2 * answers)
			check(len(s.pods), before+1)
			time.Sleep(nodereport.Pause)
		}
		before := writes
		s.remove(s.pods[0])
		h.PodsChanged()
		time.Sleep(answers)
		bind()
		bind()
		time.Sleep(nodereport.Pause)
		check(len(s.pods), before+1)
		cancel()
		<-done
	})
}

// TestComingPodsObeyTheirChoices checks that a bound pod without GPUs lowers only the rooms of the GPUs
// that the pod accepts. A pod that accepts no GPU, or that names only a turn, lowers nothing.
func TestComingPodsObeyTheirChoices(t *testing.T) {
	s := fitSite(t, 2, config.PlaceBinpack)
	choosing := podAsking("choosing", units{memory: 16 << 10})
	choosing.Annotations = map[string]string{choice.UseUUID: "GPU-1"}
	nowhere := podAsking("nowhere", units{memory: 16 << 10})
	nowhere.Annotations = map[string]string{choice.UseUUID: "GPU-9"}
	s.pods = []*corev1.Pod{choosing, nowhere, podAsking("turn", units{request.FitTurn: 1})}
	left := s.heartbeat.Ledger.Left(s.heartbeat.coming(s.pods, s.gpus))
	for uuid, want := range map[string]uint64{"GPU-0": 16 << 30, "GPU-1": 0} {
		if got := left[uuid].Memory; got != want {
			t.Errorf("%s has %d bytes left, want %d", uuid, got, want)
		}
	}
}

// TestPodsThatGetNoGPUHideNoOthers checks that pods which never get a GPU do not count as coming pods.
// Otherwise the Node would offer the capacity of other pods twice.
func TestPodsThatGetNoGPUHideNoOthers(t *testing.T) {
	s := fitSite(t, 1, config.PlaceBinpack)
	for i := range maxComing {
		invalid := podAsking(fmt.Sprint("invalid", i), units{memory: 1, metagpu: 1})
		turn := podAsking(fmt.Sprint("turn", i), units{request.FitTurn: 1})
		refused := podAsking(fmt.Sprint("refused", i), units{memory: 17 << 10})
		refused.ResourceVersion = "1"
		if err := s.start(refused); err == nil {
			t.Fatal("a pod that is larger than the GPU has started")
		}
		s.pods = append(s.pods, invalid, turn, refused)
	}
	young := podAsking("young", units{memory: 4 << 10})
	young.CreationTimestamp = metav1.Now()
	s.pods = append(s.pods, young)
	coming := s.heartbeat.coming(s.pods, s.gpus)
	if len(coming) != 1 || coming[0].UID != "young" {
		t.Errorf("%d pods are coming, want the youngest alone", len(coming))
	}
}

// TestFitBindsWhatStarts runs a scheduler on a node with random pods. The scheduler binds one pod at a
// time if the sums and the labels allow the pod. Each bound pod must start.
func TestFitBindsWhatStarts(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	bound, waited := 0, 0
	for run := range 60 {
		s := fitSite(t, 1+r.IntN(8), []string{config.PlaceBinpack, config.PlaceSpread}[run%2])
		for i := range 60 {
			gpus := []int{1, 1, 1, 1, 2, 3, 4}[r.IntN(7)]
			mib, percent := 512*(1+r.Int64N(32)), 10*r.Int64N(11)
			shape := fmt.Sprintf("%d-%d-0-%d", gpus, mib, percent)
			pod := shaped(podAsking(fmt.Sprint("pod", i), units{number: int64(gpus), memory: mib, cores: percent}), shape)
			if percent == 0 {
				delete(pod.Spec.Containers[0].Resources.Limits, corev1.ResourceName(cores))
			}
			switch {
			case r.IntN(3) == 0 && len(s.pods) > 0:
				s.remove(s.pods[r.IntN(len(s.pods))])
			case !s.fits(shape):
				waited++
			case s.schedule(pod):
				bound++
				if err := s.start(pod); err != nil {
					t.Fatalf("run %d: a pod of %d GPUs with %d MiB and %d %%: %v", run, gpus, mib, percent, err)
				}
			}
		}
	}
	if bound < 500 || waited < 500 {
		t.Errorf("%d pods were bound and %d waited: the test tests nothing", bound, waited)
	}
}

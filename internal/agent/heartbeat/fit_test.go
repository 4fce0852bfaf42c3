// SPDX-License-Identifier: Apache-2.0

package heartbeat

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

func fitSite(t *testing.T, gpus int, policy string) *site {
	cfg := config.Default()
	cfg.Scheduling.Mode, cfg.Placement.Policy = config.ScheduleFit, policy
	var all []gpu.GPU
	for i := range gpus {
		all = append(all, gpu.GPU{UUID: fmt.Sprint("GPU-", i), Index: i, MemoryBytes: 16 << 30, Healthy: true})
	}
	return newSite(t, cfg, all)
}

// TestFitIsReportedAtOnce checks that in the mode fit each change of what is free, or of the pods, is
// urgent.
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
		t.Error("what is free again is not reported")
	}
	s.heartbeat.Config.Scheduling.Mode = config.ScheduleSums
	if sums := s.heartbeat.sums(s.gpus); sums.Fit != nil || urgent(bound, sums) {
		t.Errorf("in the mode sums the report of more free capacity is urgent: %+v", sums)
	}
}

// fits reports whether the Node's labels allow a pod that asks for parts of some GPUs, by the
// conditions that the policy adds to the pod.
func (s *site) fits(gpus int, mib, cores int64) bool {
	labels := s.heartbeat.sums(s.gpus).Fit.Labels
	for _, n := range request.FitCounts() {
		if n < gpus {
			continue
		}
		for _, size := range request.FitSizes() {
			value := func(dimension string) int64 {
				v, err := strconv.ParseInt(labels[fmt.Sprint(request.FitPrefix, n, size, "-", dimension)], 10, 64)
				if err != nil {
					return -1
				}
				return v
			}
			if value("memory") >= mib && value("cores") >= cores {
				return true
			}
		}
		return false
	}
	return false
}

// TestFitBindsWhatStarts runs a scheduler that binds a pod if the sums and the labels allow it, one
// at a time, on a node with random pods. Each bound pod must start.
func TestFitBindsWhatStarts(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	bound, waited := 0, 0
	for run := range 60 {
		s := fitSite(t, 1+r.IntN(8), []string{config.PlaceBinpack, config.PlaceSpread}[run%2])
		for i := range 60 {
			gpus := []int{1, 1, 1, 1, 2, 3, 4}[r.IntN(7)]
			mib, percent := 512*(1+r.Int64N(32)), 10*r.Int64N(11)
			pod := podAsking(fmt.Sprint("pod", i), units{number: int64(gpus), memory: mib, cores: percent})
			if percent == 0 {
				delete(pod.Spec.Containers[0].Resources.Limits, corev1.ResourceName(cores))
			}
			switch {
			case r.IntN(3) == 0 && len(s.pods) > 0:
				s.remove(s.pods[r.IntN(len(s.pods))])
			case !s.fits(gpus, mib, percent):
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

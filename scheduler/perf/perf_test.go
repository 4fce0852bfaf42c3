// SPDX-License-Identifier: Apache-2.0

// Package perf measures the scheduler with the plugin VGPU by Kubernetes' own scheduler_perf, beside
// kube-scheduler's basic workload in the same run. "make bench-scheduler" runs it.
//go:build perf

package perf

import (
	"fmt"
	"os"
	"testing"

	perf "k8s.io/kubernetes/test/integration/scheduler_perf"

	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"github.com/nri-vgpu/nri-vgpu/scheduler/vgpu"
)

func TestMain(m *testing.M) {
	if err := perf.InitTests(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// BenchmarkPerfScheduling has this name for scheduler_perf's output.
func BenchmarkPerfScheduling(b *testing.B) {
	perf.RunBenchmarkPerfScheduling(b, "testdata/workloads.yaml", "vgpu", frameworkruntime.Registry{vgpu.Name: vgpu.New, vgpu.FitName: vgpu.NewFit, vgpu.PreemptionName: vgpu.NewPreemption})
}

// SPDX-License-Identifier: Apache-2.0

// Package perf measures the scheduler with the plugin VGPU by Kubernetes' scheduler_perf. The same
// run measures kube-scheduler's basic workload. "make bench-scheduler" runs the measurement.
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

// BenchmarkPerfScheduling has the name that scheduler_perf's output requires.
func BenchmarkPerfScheduling(b *testing.B) {
	perf.RunBenchmarkPerfScheduling(b, "testdata/workloads.yaml", "vgpu", frameworkruntime.Registry{vgpu.Name: vgpu.New, vgpu.FitName: vgpu.NewFit, vgpu.PreemptionName: vgpu.NewPreemption})
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
)

func TestNVMLUse(t *testing.T) {
	users := []oracle.NVMLUser{
		{Comm: "vgpuctl", Calls: 100},
		{Comm: "calls", Calls: 3},
		{Comm: "exe", Calls: 2},
		{Comm: "calls", Calls: 5},
		{Comm: "nri-vgpu", Calls: 9},
		{Comm: "vgpu-nvml", Calls: 7},
	}
	want := NVMLUse{Call: "nvml", Driver: "d", Processes: []string{"calls", "exe"}, Calls: 10, Rule: "none", Broken: true}
	if diff := cmp.Diff(want, nvmlUse("d", users)); diff != "" {
		t.Error(diff)
	}
	if use := nvmlUse("d", users[:1]); use.Broken || use.Calls != 0 || len(use.Processes) != 0 {
		t.Errorf("only the host's values: %+v", use)
	}
}

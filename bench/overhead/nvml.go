// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
)

// NVMLUse counts the calls of NVML by tenants' processes, according to the simulator.
type NVMLUse struct {
	Call   string `json:"call"` // "nvml"
	Driver string `json:"driver"`
	// Processes are the names of the calling processes.
	Processes []string `json:"processes"`
	Calls     uint64   `json:"nvml_calls"`
	Rule      string   `json:"rule"`
	Broken    bool     `json:"broken"`
}

// hosts are the programs that query NVML for the host.
var hosts = []string{"vgpuctl", "vgpu-devices", "vgpu-nvml", "nri-vgpu"}

// nvmlUse counts the calls of all processes except the processes of the host. The benchmark's
// programs never call NVML themselves.
func nvmlUse(driver string, users []oracle.NVMLUser) NVMLUse {
	use := NVMLUse{Call: "nvml", Driver: driver, Processes: []string{}, Rule: "none"}
	for _, user := range users {
		if slices.Contains(hosts, user.Comm) {
			continue
		}
		use.Calls += user.Calls
		if !slices.Contains(use.Processes, user.Comm) {
			use.Processes = append(use.Processes, user.Comm)
		}
	}
	use.Broken = use.Calls > 0
	return use
}

// nvml counts the calls of all processes on the machine. nvml returns nil on a
// real machine.
func (s *site) nvml() (*NVMLUse, error) {
	if s.truth == nil {
		return nil, nil
	}
	users, err := s.truth.NVMLUsers()
	if err != nil {
		return nil, err
	}
	use := nvmlUse(s.driver, users)
	return &use, nil
}

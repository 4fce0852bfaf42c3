package main

import (
	"slices"

	"github.com/nri-vgpu/nri-vgpu/gpusim/oracle"
)

// NVMLUse is how often processes of tenants called NVML, by the simulator's count.
type NVMLUse struct {
	Call   string `json:"call"` // "nvml"
	Driver string `json:"driver"`
	// Processes are the names of those that did.
	Processes []string `json:"processes"`
	Calls     uint64   `json:"nvml_calls"`
	Rule      string   `json:"rule"`
	Broken    bool     `json:"broken"`
}

// hosts are the programs that ask NVML on the host's behalf.
var hosts = []string{"vgpuctl", "vgpu-devices", "vgpu-nvml", "nri-vgpu"}

// nvmlUse counts the calls of all processes that are not the host's. None of the
// benchmark's programs calls NVML by itself.
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

// nvml counts the calls of all that ran on the machine, nil on a real one.
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

// Package placement chooses GPUs for requests: the ledger of what is taken,
// and the rules by which a share gets its GPU. It is pure: no files, no
// driver, no runtime.
package placement

import (
	"encoding/json"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Device is a part of a GPU that a container holds.
type Device struct {
	UUID        string `json:"uuid"`
	MemoryBytes uint64 `json:"memoryBytes"`
	// MemoryInCommon tells that MemoryBytes, the GPU's whole, is not the
	// container's own but shared with every other that holds it so.
	MemoryInCommon bool `json:"memoryInCommon,omitempty"`
	// LimitBytes, where not 0, is what its programs may use: more than
	// MemoryBytes, as long as others leave it.
	LimitBytes uint64 `json:"limitBytes,omitempty"`
	// ComputePPM is the limit on GPU time in parts per million; 0 is none.
	ComputePPM uint32 `json:"computePPM,omitempty"`
	// MaximumPPM, where not 0, makes ComputePPM a guarantee: the container may have up to
	// so much of what others leave idle, and lends what it leaves.
	MaximumPPM uint32 `json:"maximumPPM,omitempty"`
	Slots      int    `json:"slots"`
	Exclusive  bool   `json:"exclusive,omitempty"`
	// MPS: the GPU is shared through the Multi-Process Service.
	MPS bool `json:"mps,omitempty"`
}

// Limit is how much of the GPU's memory its programs may use, in bytes.
func (d Device) Limit() uint64 { return max(d.MemoryBytes, d.LimitBytes) }

// Allocation is what one container holds, for as long as its pod lives. No
// devices: it asked for none.
type Allocation struct {
	PodUID    string       `json:"podUID"`
	Namespace string       `json:"namespace"`
	Pod       string       `json:"pod"`
	Container string       `json:"container"`
	Kind      request.Kind `json:"kind"`
	// Position is the container's place in the pod's spec, counted from 0,
	// init containers first: it tells which containers run at one time.
	Position int      `json:"position"`
	Dialect  string   `json:"dialect"`
	Devices  []Device `json:"devices"`
}

// UnmarshalJSON reads an allocation, also of agents that knew no maximum: theirs are for all
// devices, all of their time.
func (a *Allocation) UnmarshalJSON(data []byte) error {
	type plain Allocation
	read := struct {
		*plain
		Share bool `json:"share"`
	}{plain: (*plain)(a)}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	for i := range a.Devices {
		if d := &a.Devices[i]; read.Share && !d.MPS && d.ComputePPM > 0 && d.ComputePPM < request.Whole {
			d.MaximumPPM = request.Whole
		}
	}
	return nil
}

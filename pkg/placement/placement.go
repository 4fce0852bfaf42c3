// SPDX-License-Identifier: Apache-2.0

// Package placement chooses GPUs for requests. The package contains the ledger of
// allocations and the rules that assign a GPU to a share. The package is pure: it uses no
// files, no driver and no runtime.
package placement

import (
	"encoding/json"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// Device is a part of a GPU that a container holds.
type Device struct {
	UUID        string `json:"uuid"`
	MemoryBytes uint64 `json:"memoryBytes"`
	// MemoryInCommon reports whether the container shares MemoryBytes, the whole memory of the GPU,
	// with every other container that holds the memory in common.
	MemoryInCommon bool `json:"memoryInCommon,omitempty"`
	// LimitBytes, if not 0, is the memory that the container may use. LimitBytes exceeds
	// MemoryBytes; the excess is available only while other containers do not use it.
	LimitBytes uint64 `json:"limitBytes,omitempty"`
	// ComputePPM is the limit on GPU time in parts per million; 0 means no limit.
	ComputePPM uint32 `json:"computePPM,omitempty"`
	// MaximumPPM, if not 0, makes ComputePPM a guarantee. The container lends its idle time, and
	// may use up to MaximumPPM of the GPU's time when other containers are idle.
	MaximumPPM uint32 `json:"maximumPPM,omitempty"`
	Slots      int    `json:"slots"`
	Exclusive  bool   `json:"exclusive,omitempty"`
	// MPS reports whether containers share the GPU through the Multi-Process Service.
	MPS bool `json:"mps,omitempty"`
}

// Limit returns the GPU memory that the container may use, in bytes.
func (d Device) Limit() uint64 { return max(d.MemoryBytes, d.LimitBytes) }

// Allocation is the GPUs that a container holds for the lifetime of its pod. Allocation has no
// devices if the container requested no GPU.
type Allocation struct {
	PodUID    string       `json:"podUID"`
	Namespace string       `json:"namespace"`
	Pod       string       `json:"pod"`
	Container string       `json:"container"`
	Kind      request.Kind `json:"kind"`
	// Position is the container's place in the pod's spec, counted from 0, init containers
	// first. Position determines which containers run at the same time.
	Position int      `json:"position"`
	Dialect  string   `json:"dialect"`
	Devices  []Device `json:"devices"`
	// Resized reports that the devices have had other sizes than the pod's spec requests. The sizes of
	// a resized allocation change while the container runs.
	Resized bool `json:"resized,omitempty"`
	// Placed are the devices before the first resize, in the order of Devices. An allocation that an
	// older agent has resized has none.
	Placed []Device `json:"placed,omitempty"`
}

// MarkResized records that the sizes of an allocation may differ from the sizes at its placement.
func (a *Allocation) MarkResized() {
	if !a.Resized {
		a.Resized, a.Placed = true, slices.Clone(a.Devices)
	}
}

// PlacedShares returns one share for each GPU of an allocation, with the sizes at its placement.
// PlacedShares returns nil if an older agent has resized the allocation.
func (a Allocation) PlacedShares() []request.Share {
	placed := a.Placed
	if !a.Resized {
		placed = a.Devices
	}
	var shares []request.Share
	for _, d := range placed {
		memory := request.Memory{Bytes: d.MemoryBytes, Common: d.MemoryInCommon}
		shares = append(shares, request.Share{Memory: memory, ComputePPM: d.ComputePPM, MaximumPPM: d.MaximumPPM, Slots: d.Slots, Exclusive: d.Exclusive})
	}
	return shares
}

// UnmarshalJSON decodes an allocation. Agents older than MaximumPPM wrote a field "share", which
// applies to all devices and allows all of the GPU's time.
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

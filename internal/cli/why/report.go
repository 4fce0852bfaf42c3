// SPDX-License-Identifier: Apache-2.0

package why

import "github.com/nri-vgpu/nri-vgpu/pkg/request"

// Report is the explanation for one pod, for programs.
type Report struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Waits reports whether the pod waits for a node.
	Waits bool `json:"waits"`
	// Invalid is the error in the pod's request.
	Invalid string `json:"invalid,omitempty"`
	// Containers are the requests of the pod's containers.
	Containers []request.Container `json:"containers"`
	Nodes      []NodeReport        `json:"nodes"`
	// Conclusion is the meaning of the verdicts, and advice. Scheduler is the scheduler's own reason.
	Conclusion string `json:"conclusion,omitempty"`
	Scheduler  string `json:"scheduler,omitempty"`
	// Unknown is the error if agents could not be queried.
	Unknown string `json:"unknown,omitempty"`
}

// NodeReport is the verdict on a node, for programs.
type NodeReport struct {
	Name string `json:"name"`
	Fits bool   `json:"fits"`
	// Excluded and Against are the reasons of Node.
	Excluded string      `json:"excluded,omitempty"`
	Against  string      `json:"against,omitempty"`
	GPUs     []GPUReport `json:"gpus"`
}

// GPUReport is the verdict on a GPU, for programs.
type GPUReport struct {
	UUID            string `json:"uuid"`
	Index           int    `json:"index"`
	Healthy         bool   `json:"healthy"`
	MemoryBytes     uint64 `json:"memoryBytes"`
	FreeMemoryBytes uint64 `json:"freeMemoryBytes"`
	FreeComputePPM  uint32 `json:"freeComputePPM"`
	FreeSlots       int    `json:"freeSlots"`
	// Against is the reason why the GPU has no room, "" if the GPU has room.
	Against string `json:"against,omitempty"`
}

// Report returns the explanation for programs. Report contains all nodes.
func (a Answer) Report() Report {
	r := Report{
		Namespace: a.Pod.Namespace, Name: a.Pod.Name, Waits: a.waits(),
		Containers: []request.Container{}, Nodes: []NodeReport{},
	}
	r.Containers = append(r.Containers, a.Asked.Containers...)
	if a.Invalid != nil {
		r.Invalid = a.Invalid.Error()
	}
	if a.Unknown != nil {
		r.Unknown = a.Unknown.Error()
	}
	if a.waits() {
		r.Scheduler = schedulerReport(a.Pod)
	}
	if a.explained() {
		return r
	}
	r.Conclusion = a.conclusion()
	for _, n := range a.Nodes {
		r.Nodes = append(r.Nodes, n.report())
	}
	return r
}

func (n Node) report() NodeReport {
	r := NodeReport{Name: n.Name, Fits: n.Fits, Excluded: n.Excluded, Against: n.Against, GPUs: []GPUReport{}}
	for _, g := range n.GPUs {
		r.GPUs = append(r.GPUs, GPUReport{
			UUID: g.UUID, Index: g.Index, Healthy: g.Healthy, MemoryBytes: g.MemoryBytes, FreeMemoryBytes: g.FreeMemoryBytes,
			FreeComputePPM: g.FreeComputePPM, FreeSlots: g.FreeSlots, Against: g.Against,
		})
	}
	return r
}

// SPDX-License-Identifier: Apache-2.0

package agentapi

import "time"

// OverviewPath is the path at which an agent serves the node's Overview over HTTPS.
const OverviewPath = "/overview"

// OverviewAudience is the audience of tokens for OverviewPath. The API server does not accept these
// tokens itself.
const OverviewAudience = "nri-vgpu-agent"

// Overview is the answer to All: the allocations of the GPUs and their use. In a container the
// answer covers the container's own pod.
type Overview struct {
	Node string `json:"node"`
	// Version is the agent's version.
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	// Driver is the reason why the driver's measurements are missing, empty if they are present.
	Driver string `json:"driver,omitempty"`
	// Pool is the pool of config.toml whose configuration the node applies, or "".
	Pool string `json:"pool,omitempty"`
	// LeftOut are the UUIDs of the GPUs that the node does not offer. OfferedTwice are the UUIDs of
	// the GPUs that another device plugin also offers. In a container, both lists are empty.
	LeftOut      []string `json:"leftOut,omitempty"`
	OfferedTwice []string `json:"offeredTwice,omitempty"`
	// Foreign is the number of containers that request each resource of another device plugin.
	Foreign    map[string]int `json:"foreign,omitempty"`
	GPUs       []GPU          `json:"gpus"`
	Containers []Container    `json:"containers"`
	Processes  []Process      `json:"processes"`
}

// GPU is a Device with its allocated and free capacity.
type GPU struct {
	Node string `json:"node"`
	Device
	// Room is the GPU's free capacity; nil in a container.
	Room *Room `json:"room,omitempty"`
}

// Room is the capacity of a GPU for containers, and the free part of that capacity.
type Room struct {
	MemoryBytes     uint64 `json:"memoryBytes"`
	FreeMemoryBytes uint64 `json:"freeMemoryBytes"`
	FreeComputePPM  uint32 `json:"freeComputePPM"`
	FreeSlots       int    `json:"freeSlots"`
	// Holders is the number of containers that may run on the GPU at the same time.
	Holders int `json:"holders"`
	// Exclusive reports whether one container has the whole GPU.
	Exclusive bool `json:"exclusive,omitempty"`
	// MPS reports whether the GPU is shared through the Multi-Process Service.
	MPS bool `json:"mps,omitempty"`
	// FreeClients is the number of further containers that the service can serve.
	FreeClients int `json:"freeClients,omitempty"`
	// Common reports whether containers hold the memory in common.
	Common bool `json:"common,omitempty"`
}

// Container is a container with allocated GPUs, in use or not.
type Container struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	Node      string `json:"node"`
	// Requests contains the requested amounts of the container, by resource.
	Requests map[string]int64 `json:"requests,omitempty"`
	GPUs     []Share          `json:"gpus"`
}

// Share is a container's part of one GPU, and its use.
type Share struct {
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	// MIG describes a MIG device, and is zero for a physical GPU.
	MIG MIG `json:"mig,omitzero"`
	// Unhealthy is the reason why the GPU takes no new containers.
	Unhealthy        string `json:"unhealthy,omitempty"`
	MemoryLimitBytes uint64 `json:"memoryLimitBytes"`
	// MemoryUsedBytes and Utilisation, percent of the GPU's time within the last second, come from
	// the driver. Each is nil if the driver does not report the value.
	MemoryUsedBytes *uint64  `json:"memoryUsedBytes,omitempty"`
	Utilisation     *float64 `json:"utilisation,omitempty"`
	// ComputeLimitPPM is the container's part of the GPU's time, 0 for the whole time. If
	// ComputeMaximumPPM is not 0, ComputeLimitPPM is a guarantee. The container may then use idle
	// time of other containers up to ComputeMaximumPPM.
	ComputeLimitPPM   uint32 `json:"computeLimitPPM,omitempty"`
	ComputeMaximumPPM uint32 `json:"computeMaximumPPM,omitempty"`
	Processes         int    `json:"processes"`
	// Account is the container's own account; nil if the container has whole GPUs.
	Account *Account `json:"account,omitempty"`
	// Meter compares the container's charged GPU time with the driver's samples; nil if the
	// container has no limit on time.
	Meter *Meter `json:"meter,omitempty"`
}

// Number returns the GPU's number as Device.Number does.
func (s Share) Number() string { return number(s.Index, s.MIG) }

// MeterTolerance is the allowed distance of metered GPU time from the interval of the driver's
// observations, as a part of the GPU's time. MeterTolerance covers the meter's own error, and the
// time that is charged before the work runs.
const MeterTolerance = 0.03

// Meter compares metered GPU time with the driver's samples, over the recent minutes.
type Meter struct {
	// Seconds is the compared time, and Samples the number of the driver's samples in it.
	Seconds float64 `json:"seconds"`
	Samples int     `json:"samples"`
	// Observed and Metered are parts of the GPU's time, 0 to 1.
	Observed float64 `json:"observed"`
	Metered  float64 `json:"metered"`
	// Ratio is Observed divided by Metered, and Low and High are its bounds of 3 sigma; 0 if
	// nothing was metered.
	Ratio float64 `json:"ratio,omitempty"`
	Low   float64 `json:"low,omitempty"`
	High  float64 `json:"high,omitempty"`
	// Disagreement is the part of the GPU's time by which Metered lies outside the bounds of
	// Observed. Disagreement is above 0 if the container used more time than was charged. Disagrees
	// reports whether the part exceeds MeterTolerance.
	Disagreement float64 `json:"disagreement"`
	Disagrees    bool    `json:"disagrees,omitempty"`
}

// Account contains the amounts that a container's processes count against its limits. The root user
// of the container can falsify the amounts, but gains nothing.
type Account struct {
	MemoryBytes uint64  `json:"memoryBytes"`
	BusySeconds float64 `json:"busySeconds"`
	// ThrottledSeconds is the sum of the delays of the container's threads.
	ThrottledSeconds float64 `json:"throttledSeconds"`
	Launches         uint64  `json:"launches"`
	// Refusals counts the allocations that the limit refused; RefusedWay and RefusedBytes describe
	// the last refusal.
	Refusals     uint64 `json:"refusals"`
	RefusedWay   string `json:"refusedWay,omitempty"`
	RefusedBytes uint64 `json:"refusedBytes,omitempty"`
}

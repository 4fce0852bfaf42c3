package query

import "time"

// Overview is the answer to All: who has what of the GPUs, and what they make of
// it. In a container it is of its own pod.
type Overview struct {
	Node string `json:"node"`
	// Version is the agent's.
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	// Driver says why what the driver measures is missing; empty where it is not.
	Driver     string      `json:"driver,omitempty"`
	GPUs       []GPU       `json:"gpus"`
	Containers []Container `json:"containers"`
	Processes  []Process   `json:"processes"`
}

// GPU is a Device and what of it is given away.
type GPU struct {
	Node string `json:"node"`
	Device
	// Room is what is left of it; none in a container.
	Room *Room `json:"room,omitempty"`
}

// Room is what of a GPU may be given to containers, and what of that is left.
type Room struct {
	MemoryBytes     uint64 `json:"memoryBytes"`
	FreeMemoryBytes uint64 `json:"freeMemoryBytes"`
	FreeComputePPM  uint32 `json:"freeComputePPM"`
	FreeSlots       int    `json:"freeSlots"`
	// Holders is how many containers may run on it at one time.
	Holders int `json:"holders"`
	// Exclusive: a container has it for itself.
	Exclusive bool `json:"exclusive,omitempty"`
	// MPS: it is shared through the Multi-Process Service.
	MPS bool `json:"mps,omitempty"`
}

// Container is one that was given GPUs, whether or not it uses them.
type Container struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	Node      string `json:"node"`
	// Requests is what it asks for, by resource.
	Requests map[string]int64 `json:"requests,omitempty"`
	GPUs     []Share          `json:"gpus"`
}

// Share is what a container has of one GPU, and makes of it.
type Share struct {
	UUID  string `json:"uuid"`
	Index int    `json:"index"`
	// Unhealthy says why the GPU takes no new containers.
	Unhealthy        string `json:"unhealthy,omitempty"`
	MemoryLimitBytes uint64 `json:"memoryLimitBytes"`
	// MemoryUsedBytes and Utilisation, percent of the GPU's time within the last
	// second, are the driver's; none where it does not tell.
	MemoryUsedBytes *uint64  `json:"memoryUsedBytes,omitempty"`
	Utilisation     *float64 `json:"utilisation,omitempty"`
	// ComputeLimitPPM is its part of the GPU's time, 0 for all of it. It is a guarantee
	// where ComputeMaximumPPM is not 0: up to that it may have what others leave idle.
	ComputeLimitPPM   uint32 `json:"computeLimitPPM,omitempty"`
	ComputeMaximumPPM uint32 `json:"computeMaximumPPM,omitempty"`
	Processes         int    `json:"processes"`
	// Account is the container's own; none where it has whole GPUs.
	Account *Account `json:"account,omitempty"`
	// Meter compares the GPU time that it was charged with what the driver sampled; none
	// where it has no limit on time.
	Meter *Meter `json:"meter,omitempty"`
}

// Meter is how far metered GPU time can be trusted, in the minutes just past.
type Meter struct {
	// Seconds is the time that was compared, in so many Samples of the driver.
	Seconds float64 `json:"seconds"`
	Samples int     `json:"samples"`
	// Observed and Metered are parts of the GPU's time, 0 to 1.
	Observed float64 `json:"observed"`
	Metered  float64 `json:"metered"`
	// Ratio is the one to the other, Low and High its bounds of 3 sigma; 0 where nothing was
	// metered.
	Ratio float64 `json:"ratio,omitempty"`
	Low   float64 `json:"low,omitempty"`
	High  float64 `json:"high,omitempty"`
	// Disagreement is by what part of the GPU's time they differ beyond these, above 0 where
	// the container had more than it was charged; Disagrees, that it is too much.
	Disagreement float64 `json:"disagreement"`
	Disagrees    bool    `json:"disagrees,omitempty"`
}

// Account is what a container's processes count against its limits. Who is root in
// the container can falsify it, to no gain.
type Account struct {
	MemoryBytes uint64  `json:"memoryBytes"`
	BusySeconds float64 `json:"busySeconds"`
	// ThrottledSeconds is how long its threads were held back, added up.
	ThrottledSeconds float64 `json:"throttledSeconds"`
	Launches         uint64  `json:"launches"`
	// Refusals are allocations that its limit refused; RefusedWay and RefusedBytes
	// are of the last.
	Refusals     uint64 `json:"refusals"`
	RefusedWay   string `json:"refusedWay,omitempty"`
	RefusedBytes uint64 `json:"refusedBytes,omitempty"`
}

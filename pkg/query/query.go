// Package query is how programs ask the agent who uses the GPUs: what is said
// over its sockets, and the client. Who asks is told by the kernel, and decides
// what is answered; a question can change nothing.
package query

// Question is what can be asked.
type Question uint16

// Questions. Their numbers stand in messages, and stay.
const (
	// Ping asks who answers: Pong.
	Ping Question = 1
	// Processes asks for those that use GPUs: a list of Process.
	Processes Question = 2
	// Devices asks for GPUs: a list of Device.
	Devices Question = 3
	// All asks for everything at one moment: an Overview.
	All Question = 4
)

// Pong is the answer to Ping.
type Pong struct {
	Node string `json:"node"`
	// Version is the agent's.
	Version string `json:"version"`
}

// Process is one process on one GPU.
type Process struct {
	// Namespace, Pod and Container are empty for processes outside of pods.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	Node      string `json:"node"`
	// UUID is the GPU's.
	UUID string `json:"uuid"`
	// PID is the process's in its container; on the node, the node's.
	PID     uint32 `json:"pid"`
	Command string `json:"command"`
	// Type tells by which kinds of API it uses the GPU, as nvidia-smi does: "C"
	// (compute), "G" (graphics) or "C+G"; with "V" for video engines.
	Type string `json:"type,omitempty"`
	// Utilisation is the part of the GPU's time that the process had within the
	// last second, in percent, as the driver measures it; none where it does not.
	Utilisation *float64 `json:"utilisation,omitempty"`
	// ShareUtilisation is the same in percent of what the container has of the
	// GPU's time.
	ShareUtilisation *float64 `json:"shareUtilisation,omitempty"`
	// MemoryUsedBytes is what the process holds, by the driver; none where it
	// does not tell.
	MemoryUsedBytes *uint64 `json:"memoryUsedBytes,omitempty"`
	// MemoryLimitBytes is the container's limit, 0 where there is none.
	MemoryLimitBytes uint64 `json:"memoryLimitBytes,omitempty"`
	// ComputeLimitPPM is the container's part of the GPU's time, 0 for all.
	ComputeLimitPPM uint32 `json:"computeLimitPPM,omitempty"`
	// Requests is what the container asks for, by resource.
	Requests map[string]int64 `json:"requests,omitempty"`
}

// Device is a GPU: in a container what the container has of it, on the node the
// whole.
type Device struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	Name  string `json:"name,omitempty"`
	// Unhealthy says why it takes no containers.
	Unhealthy string `json:"unhealthy,omitempty"`
	// MemoryBytes is the container's limit, on the node the GPU's memory.
	MemoryBytes uint64 `json:"memoryBytes"`
	// MemoryUsedBytes is what the container's processes hold, on the node all
	// processes; none where the driver does not tell.
	MemoryUsedBytes *uint64 `json:"memoryUsedBytes,omitempty"`
	// Utilisation is theirs of the GPU's time within the last second, in percent.
	Utilisation *float64 `json:"utilisation,omitempty"`
	// Sharing is what the GPU is worth in shares; empty where it is not offered so.
	Sharing []Sharing `json:"sharing,omitempty"`
}

// Sharing is a GPU divided into shares under one name.
type Sharing struct {
	Resource string `json:"resource"`
	// PerGPU is how many shares the GPU has.
	PerGPU int `json:"perGPU"`
	// ShareBytes is the memory of one.
	ShareBytes uint64 `json:"shareBytes"`
	// Held is how many the container has, on the node all together, of whatever
	// dialect, rounded up.
	Held int `json:"held"`
}

// Package request turns a pod's spec into the GPU shares that each of its
// containers asks for, in any dialect, and a node's GPUs into the capacity
// that each dialect advertises.
package request

// Whole is the share that stands for an entire GPU, in parts per million.
const Whole = 1_000_000

// Memory is an amount of one GPU's memory: either bytes, or a fraction of
// whichever GPU is chosen. Exactly one field is non-zero.
type Memory struct {
	Bytes uint64 `json:"bytes,omitempty"`
	PPM   uint32 `json:"ppm,omitempty"`
}

// On is the amount in bytes on a GPU whose usable memory is total bytes.
func (m Memory) On(total uint64) uint64 {
	if m.Bytes != 0 {
		return m.Bytes
	}
	// total < 2^44 and PPM ≤ 10^6 < 2^20: the product fits.
	return total * uint64(m.PPM) / Whole
}

// Share is what a container asks of one GPU.
type Share struct {
	Memory Memory `json:"memory"`
	// ComputePPM is the asked-for part of the GPU's time, in parts per
	// million; 0 asks for no part and gets no limit.
	ComputePPM uint32 `json:"computePPM,omitempty"`
	// Slots is how many of the GPU's slots the share occupies, at least 1.
	Slots int `json:"slots"`
	// Exclusive asks for a GPU that nobody else is on, and keeps it so.
	Exclusive bool `json:"exclusive,omitempty"`
	// GPUs, when not empty, are the UUIDs of the only GPUs that will do.
	GPUs []string `json:"gpus,omitempty"`
}

// Kind says how long a container's GPUs are its own: kubelet runs init
// containers before the app containers, which reuse what those held.
type Kind string

// The kinds of container in a pod spec.
const (
	App       Kind = "app"
	Init      Kind = "init"
	Sidecar   Kind = "sidecar" // an init container with restartPolicy Always
	Ephemeral Kind = "ephemeral"
)

// Container is one container of a pod and the shares it asks for, each on a
// GPU of its own. No shares: it asks for no GPU.
type Container struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Dialect names the language the request was written in.
	Dialect string  `json:"dialect,omitempty"`
	Shares  []Share `json:"shares,omitempty"`
}

// Pod is a pod's containers in the order of its spec, init containers first.
type Pod struct {
	UID        string      `json:"uid"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Containers []Container `json:"containers"`
}

// Package request turns a pod's spec into the GPU shares that each of its
// containers asks for, in any dialect, and a node's GPUs into the capacity
// that each dialect advertises.
package request

// Whole is the share that stands for an entire GPU, in parts per million.
const Whole = 1_000_000

// GiB is the unit of Alnair's memory.
const GiB = 1 << 30

// Memory is an amount of one GPU's memory, in one of four ways. Exactly one
// field is non-zero.
type Memory struct {
	Bytes uint64 `json:"bytes,omitempty"`
	// PPM is a fraction, in parts per million, of whichever GPU is chosen.
	PPM uint32 `json:"ppm,omitempty"`
	// GiB counts units as Alnair's nodes advertise them; see On.
	GiB uint32 `json:"gib,omitempty"`
	// Common is the whole memory, together with whoever else asks for it in
	// common: no limit but the GPU's, and no guarantee either.
	Common bool `json:"common,omitempty"`
}

// On is the amount in bytes on a GPU whose usable memory is total bytes.
func (m Memory) On(total uint64) uint64 {
	switch {
	case m.Common:
		return total
	case m.GiB != 0:
		return gibOn(uint64(m.GiB), total)
	case m.Bytes != 0:
		return m.Bytes
	}
	// total < 2^44 and PPM ≤ 10^6 < 2^20: the product fits.
	return total * uint64(m.PPM) / Whole
}

// gibOn is n GiB where the GPU's size was rounded down to whole GiB. Where it
// was rounded up it is n equal parts of what there is, so that the units that
// a node advertises are never worth more than the GPU has.
func gibOn(n, total uint64) uint64 {
	units := RoundGiB(total)
	if units*GiB <= total {
		return n * GiB
	}
	return n * total / units
}

// RoundGiB is an amount of bytes in GiB, rounded to the nearest.
func RoundGiB(bytes uint64) uint64 { return (bytes + GiB/2) / GiB }

// Share is what a container asks of one GPU.
type Share struct {
	Memory Memory `json:"memory"`
	// Limit, where set, is what its programs may use of the GPU's memory: more
	// than Memory, which alone is kept for them.
	Limit Memory `json:"limit,omitzero"`
	// ComputePPM is the asked-for part of the GPU's time, in parts per
	// million; 0 asks for no part and gets no limit.
	ComputePPM uint32 `json:"computePPM,omitempty"`
	// MaximumPPM, where not 0, makes ComputePPM a guarantee: the container lends what it
	// leaves idle of the GPU's time, and may have up to so much of what others leave idle.
	MaximumPPM uint32 `json:"maximumPPM,omitempty"`
	// Slots is how many of the GPU's slots the share occupies: 1 in dialects
	// that count GPUs, 0 in those whose parts of a GPU bound their number.
	Slots int `json:"slots"`
	// Exclusive asks for a GPU that nobody else is on, and keeps it so.
	Exclusive bool `json:"exclusive,omitempty"`
	// GPUs, when not empty, are the UUIDs of the only GPUs that will do.
	GPUs []string `json:"gpus,omitempty"`
	// SplitPPM, when not 0, lets a share that no single GPU has room for be
	// divided over several, in multiples of this part of a GPU.
	SplitPPM uint32 `json:"splitPPM,omitempty"`
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
	UID string `json:"uid"`
	// Version, where not "", is that of the object that this was read from: of a
	// pod of equal versions the containers are equal.
	Version    string      `json:"version,omitempty"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Containers []Container `json:"containers"`
}

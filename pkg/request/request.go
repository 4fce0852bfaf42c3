// SPDX-License-Identifier: Apache-2.0

// Package request converts a pod's spec to the GPU shares that each of its containers
// requests, in any dialect. The package also converts a node's GPUs to the capacity that
// each dialect advertises.
package request

import "slices"

// Whole is the share of an entire GPU, in parts per million.
const Whole = 1_000_000

// GiB is the unit of Alnair's memory.
const GiB = 1 << 30

// Memory is an amount of one GPU's memory, in one of four units. Exactly one field is not zero.
type Memory struct {
	Bytes uint64 `json:"bytes,omitempty"`
	// PPM is a fraction of the chosen GPU, in parts per million.
	PPM uint32 `json:"ppm,omitempty"`
	// GiB counts units as Alnair's nodes advertise them; see On.
	GiB uint32 `json:"gib,omitempty"`
	// Common is the whole memory, which all containers with Common share. A request for Common has
	// no guarantee, and only the GPU's memory limits the request.
	Common bool `json:"common,omitempty"`
}

// On returns the amount in bytes on a GPU with total bytes of usable memory.
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

// gibOn returns n GiB if RoundGiB rounds the GPU's size down. If RoundGiB rounds the size up, gibOn
// returns n equal parts of the usable memory. Therefore the units that a node advertises never
// exceed the GPU's memory.
func gibOn(n, total uint64) uint64 {
	units := RoundGiB(total)
	if units*GiB <= total {
		return n * GiB
	}
	return n * total / units
}

// RoundGiB converts bytes to GiB, rounded to the nearest.
func RoundGiB(bytes uint64) uint64 { return (bytes + GiB/2) / GiB }

// Share is the part of one GPU that a container requests.
type Share struct {
	Memory Memory `json:"memory"`
	// Limit, if set, is the GPU memory that the container may use. Limit exceeds Memory, and the
	// ledger reserves only Memory.
	Limit Memory `json:"limit,omitzero"`
	// ComputePPM is the requested part of the GPU's time, in parts per million. 0 reserves
	// no part and sets no limit.
	ComputePPM uint32 `json:"computePPM,omitempty"`
	// MaximumPPM, if not 0, makes ComputePPM a guarantee. The container lends its idle time, and
	// may use up to MaximumPPM of the GPU's time when other containers are idle.
	MaximumPPM uint32 `json:"maximumPPM,omitempty"`
	// Slots is the number of the GPU's slots that the share occupies. Slots is 1 in dialects that
	// count GPUs. Slots is 0 in other dialects, since fractions of a GPU bound the number of their
	// shares.
	Slots int `json:"slots"`
	// Exclusive requests a GPU without other containers, and excludes other containers from the
	// GPU.
	Exclusive bool `json:"exclusive,omitempty"`
	// GPUs, if not empty, are the UUIDs of the only acceptable GPUs.
	GPUs []string `json:"gpus,omitempty"`
	// SplitPPM, if not 0, allows the division of a share that fits no single GPU. The pieces are
	// multiples of SplitPPM. Since SplitPPM is rounded down, the sum of the pieces may be
	// smaller than the share by less than SplitPPM.
	SplitPPM uint32 `json:"splitPPM,omitempty"`
}

// Piece returns the piece of a share that has ppm parts per million of a GPU. The share must have
// SplitPPM, which requires memory in PPM. A maximum that rounds down to the guarantee becomes 0.
func (s Share) Piece(ppm uint32) Share {
	maximum := uint32(uint64(s.MaximumPPM) * uint64(ppm) / uint64(s.Memory.PPM))
	s.Limit.PPM = uint32(uint64(s.Limit.PPM) * uint64(ppm) / uint64(s.Memory.PPM))
	s.Memory.PPM, s.ComputePPM = ppm, ppm
	s.setMaximum(maximum)
	return s
}

// Kind determines how long a container holds its GPUs. kubelet runs init containers before
// the app containers, which reuse the init containers' GPUs.
type Kind string

// These constants are the kinds of container in a pod spec.
const (
	App       Kind = "app"
	Init      Kind = "init"
	Sidecar   Kind = "sidecar" // an init container with restartPolicy Always
	Ephemeral Kind = "ephemeral"
)

// Container is a container of a pod and its requested shares, each on a different GPU.
// Container has no shares if it requests no GPU.
type Container struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Dialect is the name of the request's dialect.
	Dialect string  `json:"dialect,omitempty"`
	Shares  []Share `json:"shares,omitempty"`
	// Foreign is the resource of another device plugin that the container requests, or "". Only
	// Read sets Foreign.
	Foreign string `json:"foreign,omitempty"`
}

// Asks reports whether the container gets GPUs. An ephemeral container gets no share.
func (c Container) Asks() bool { return c.Kind != Ephemeral && len(c.Shares) > 0 }

// Pod is a pod's containers in the order of its spec, init containers first.
type Pod struct {
	UID string `json:"uid"`
	// Version, if not "", is the resource version of the parsed object. Pods with equal
	// versions have equal containers.
	Version    string      `json:"version,omitempty"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Containers []Container `json:"containers"`
	// Policy is the pod's policy of placement. If Policy is "", the node's policy applies.
	Policy string `json:"policy,omitempty"`
}

// Foreign returns the resource of another device plugin that a container requests, or "".
func (p Pod) Foreign(container string) string {
	k := slices.IndexFunc(p.Containers, func(c Container) bool { return c.Name == container })
	if k < 0 {
		return ""
	}
	return p.Containers[k].Foreign
}

// Asks reports whether a container gets GPUs. A container that is not in the parsed spec gets no
// GPU.
func (p Pod) Asks(container string) bool {
	return slices.ContainsFunc(p.Containers, func(c Container) bool { return c.Name == container && c.Asks() })
}

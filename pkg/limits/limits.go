// SPDX-License-Identifier: Apache-2.0

// Package limits reads and writes the container's files: the read-only limits page, and the usage
// page that its processes share. internal/layout declares the layout of the files once, for Go and
// for C.
//
// Tenants write the usage page: every value on the page is a claim.
package limits

//go:generate go run ./internal/gencheader ../../interposer/src/pages/pages_gen.h

import (
	"errors"

	"github.com/nri-vgpu/nri-vgpu/pkg/limits/internal/layout"
)

const (
	// MaxDevices bounds the GPUs of one container.
	MaxDevices = layout.MaxDevices
	// NoComputeLimit is the ComputePPM of a container that may use all of a
	// GPU's time.
	NoComputeLimit = layout.PPM
	// UnknownContextBytes is the charge for a context if ContextBytes is 0.
	UnknownContextBytes = layout.UnknownContextBytes

	// LimitsFile is the limits page's name in a container's directory.
	LimitsFile = "limits"
	// UsageFile is the usage page's name in a container's directory.
	UsageFile = "usage"
)

// These errors are the causes of failed reads and writes of a page. Every error about a page wraps
// one of these errors, so that callers can distinguish a foreign file from a damaged page.
var (
	// ErrForeign means that the file does not start with the page's magic.
	ErrForeign = errors.New("not a page of nri-vgpu")
	// ErrVersion means that a version with another layout wrote the page.
	ErrVersion = errors.New("page has another layout version")
	// ErrTruncated means that the file's size differs from the layout's.
	ErrTruncated = errors.New("page has the wrong size")
	// ErrCorrupt means that the page's checksum or fields are wrong.
	ErrCorrupt = errors.New("page is corrupt")
	// ErrBusy means that locks or a lease on the page prevent access to the page now. Only the
	// page's tenant can have set the locks or the lease.
	ErrBusy = errors.New("locks keep the page busy")
	// ErrInvalid means that a page cannot hold a device's limits.
	ErrInvalid = errors.New("invalid device limit")
	// ErrDevicesChanged means that an update names other GPUs than the page.
	ErrDevicesChanged = errors.New("an update cannot change a container's GPUs")
)

// Device is the limit on one GPU.
type Device struct {
	// UUID is the device's UUID in NVML's form: "GPU-…" or "MIG-…".
	UUID string
	// MemoryBytes is the limit on device memory, including contexts.
	MemoryBytes uint64
	// ComputePPM is the part of the GPU's time, in parts per million. NoComputeLimit
	// means no limit.
	ComputePPM uint32
	// MaximumPPM, if not 0, makes ComputePPM a guarantee. The container lends its idle time, and
	// may use up to MaximumPPM of the GPU's time when other containers are idle. MaximumPPM is
	// above ComputePPM.
	MaximumPPM uint32
	// MPS makes ComputePPM the part of the GPU that the Multi-Process Service lets the container
	// fill at a time. GPU time has no limit.
	MPS bool
	// Multiprocessors is the GPU's number of multiprocessors, if MPS is set; 0 means unknown.
	Multiprocessors int
	// ContextBytes is the expected size of one context on the GPU. ContextBytes is 0 if the size is
	// unknown: then the interposer charges UnknownContextBytes.
	ContextBytes uint64
}

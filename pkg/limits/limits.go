// Package limits is the container's files: the read-only limits page and the
// usage page that its processes share. Their layout is declared once, for Go
// and for C, in internal/layout.
//
// The usage page is written by tenants: what is read from it is a claim.
package limits

//go:generate go run ./internal/gencheader ../../interposer/src/pages_gen.h

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
	// UnknownContextBytes is what a context is charged where ContextBytes is 0.
	UnknownContextBytes = layout.UnknownContextBytes

	// LimitsFile is the limits page's name in a container's directory.
	LimitsFile = "limits"
	// UsageFile is the usage page's.
	UsageFile = "usage"
)

// What can be wrong with a page. Errors of this package wrap one of these, so
// that callers can tell a file that was never ours from one that broke.
var (
	// ErrForeign: the file does not start with the page's magic.
	ErrForeign = errors.New("not a page of nri-vgpu")
	// ErrVersion: the page was written by a version with another layout.
	ErrVersion = errors.New("page has another layout version")
	// ErrTruncated: the file is not of the size that the layout has.
	ErrTruncated = errors.New("page has the wrong size")
	// ErrCorrupt: the page's checksum or fields are wrong.
	ErrCorrupt = errors.New("page is corrupt")
	// ErrBusy: locks or a lease on the page keep it from being read now. Its
	// tenant alone can have set them.
	ErrBusy = errors.New("page is kept busy by locks")
	// ErrInvalid: a device cannot be written to a page.
	ErrInvalid = errors.New("invalid device limit")
	// ErrDevicesChanged: an update names other GPUs than the page has.
	ErrDevicesChanged = errors.New("an update cannot change a container's GPUs")
)

// Device is the limit on one GPU.
type Device struct {
	// UUID as NVML writes it: "GPU-…" or "MIG-…".
	UUID string
	// MemoryBytes is the limit on device memory, contexts included.
	MemoryBytes uint64
	// ComputePPM is the part of the GPU's time, in parts per million;
	// NoComputeLimit is no limit.
	ComputePPM uint32
	// MaximumPPM, where not 0, makes ComputePPM a guarantee: the container lends what it
	// leaves idle, and may have up to this part of the GPU's time of what others leave
	// idle. It is above ComputePPM.
	MaximumPPM uint32
	// MPS makes ComputePPM the part of the GPU that the Multi-Process Service
	// lets the container fill at a time: time is not limited.
	MPS bool
	// Multiprocessors is how many the GPU has, where MPS is set; 0 is unknown.
	Multiprocessors int
	// ContextBytes is what one context is expected to take on this GPU; 0
	// where that is unknown, and it is charged UnknownContextBytes.
	ContextBytes uint64
}

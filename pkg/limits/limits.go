// Package limits is the container's files: the read-only limits page and the
// usage page that its processes share. Their layout is declared here once,
// for Go and for C.
package limits

// Device is the limit on one GPU.
type Device struct {
	// UUID as NVML writes it: "GPU-…" or "MIG-…".
	UUID        string
	MemoryBytes uint64
	// ComputePPM is the part of the GPU's time, in parts per million;
	// 1,000,000 is no limit.
	ComputePPM uint32
}

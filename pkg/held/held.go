// Package held looks up what processes of containers physically hold of GPUs, in
// NVML's lists on the host.
package held

import (
	"context"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/registry"
)

// Holdings implements registry.Holdings.
type Holdings struct {
	Looks *gpu.Looks
	// GPUs returns the UUIDs of a container's GPUs, by the container's id.
	GPUs func(container string) []string
}

// Of returns what a process holds of each of its container's GPUs. The process is
// looked up by the pid that the kernel gave, which is NVML's on the host.
func (h Holdings) Of(ctx context.Context, process registry.Process) (map[string]uint64, error) {
	return h.Looks.Of(ctx, process.PID, h.GPUs(process.Container))
}

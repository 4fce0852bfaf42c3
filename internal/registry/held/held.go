// SPDX-License-Identifier: Apache-2.0

// Package held looks up the memory that processes of containers physically hold of GPUs, in NVML's
// lists on the host.
package held

import (
	"context"

	"github.com/nri-vgpu/nri-vgpu/internal/registry"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Holdings implements registry.Holdings.
type Holdings struct {
	Looks *gpu.Looks
	// GPUs returns the UUIDs of a container's GPUs, by the container's id.
	GPUs func(container string) []string
}

// Of returns the memory that a process holds of each of its container's GPUs. Of looks up the
// process by the pid that the kernel reports. NVML uses the same pid on the host.
func (h Holdings) Of(ctx context.Context, process registry.Process) (map[string]uint64, error) {
	return h.Looks.Of(ctx, process.PID, h.GPUs(process.Container))
}

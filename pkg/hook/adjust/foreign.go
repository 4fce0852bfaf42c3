// SPDX-License-Identifier: Apache-2.0

package adjust

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Yield decides on a container that requests a resource of another device plugin. The container
// keeps the GPUs that the plugin allocates. The container must not see a GPU that nri-vgpu offers.
// Every CUDA image asks NVIDIA's runtime for all GPUs. If the plugin injects the GPUs by other means
// than the environment, Yield hides the environment's GPUs.
func (r Rules) Yield(c Container, rt Runtime, resource string, offered []gpu.GPU) (Adjustment, error) {
	var a Adjustment
	seen := c.access()
	others := seen.ByOthers(r.Injection.CDIKind)
	if err := c.checkReach(others, resource, offered); err != nil {
		return a, err
	}
	err := c.checkReach(seen.ByEnvironment(), resource, offered)
	if err != nil && len(others) > 0 {
		return a, a.setVisible(c, rt, NoDevices)
	}
	return a, err
}

// CheckForeign refuses a container that requests a resource of another device plugin and that sees a
// GPU that nri-vgpu offers.
func (r Rules) CheckForeign(c Container, resource string, offered []gpu.GPU) error {
	if slices.Contains(c.CDIDevices, EnvDevice(NoDevices)) { // overrides the environment
		c.Env = nil
	}
	seen := c.access()
	return c.checkReach(append(seen.ByOthers(r.Injection.CDIKind), seen.ByEnvironment()...), resource, offered)
}

// access returns the parts of a container that may lead to GPUs.
func (c Container) access() gpuaccess.Container {
	seen := gpuaccess.Container{
		Env: c.Env, PodAnnotations: c.PodAnnotations, Annotations: c.Annotations, CDIDevices: c.CDIDevices, Devices: c.Devices,
	}
	for _, m := range c.Mounts {
		seen.Mounts = append(seen.Mounts, m.Destination)
	}
	return seen
}

// checkReach refuses a container if a reference leads to an offered GPU.
func (c Container) checkReach(references []gpuaccess.Reference, resource string, offered []gpu.GPU) error {
	for _, ref := range references {
		k := slices.IndexFunc(offered, func(g gpu.GPU) bool { return reaches(ref, g) })
		if k < 0 {
			continue
		}
		return c.Refuse(ReasonBypass, "it requests %s of another device plugin, and would see GPU %s, which nri-vgpu offers, by %s: remove that reference from the pod, or leave the GPU to the plugin (node.gpus.exclude in config.toml)",
			resource, offered[k].UUID, ref.By)
	}
	return nil
}

// reaches reports whether a reference may lead to a GPU. An unknown name may lead to every GPU.
func reaches(ref gpuaccess.Reference, g gpu.GPU) bool {
	name := ref.GPU
	if strings.HasPrefix(name, "GPU-") || gpu.IsMIG(name) {
		// NVIDIA's runtime accepts the beginning of a UUID. A GPU in MIG mode includes its MIG devices.
		return strings.HasPrefix(g.UUID, name) || strings.HasPrefix(g.Card(), name)
	}
	name, _, _ = strings.Cut(name, ":") // the part of a GPU, as in "0:1"
	n, err := strconv.Atoi(name)
	switch {
	case err != nil:
		return true
	case ref.Node:
		return n == g.Minor
	default:
		return n == g.Index
	}
}

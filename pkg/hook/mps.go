package hook

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
	"github.com/nri-vgpu/nri-vgpu/pkg/placement"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// MPS is the driver's Multi-Process Service on this node.
type MPS interface {
	// Ready gives an error that says why GPUs, by UUID, are not served now.
	Ready(uuids []string) error
}

// What a client of the Multi-Process Service reads from its environment.
const (
	mpsPipes      = "CUDA_MPS_PIPE_DIRECTORY"
	mpsPercentage = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	mpsMemory     = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)

// byMPS tells whether a container shares its GPUs through the Multi-Process
// Service: all of them, or none.
func (a Assignment) byMPS() bool {
	return slices.ContainsFunc(a.Devices, func(d placement.Device) bool { return d.MPS })
}

// checkMPS refuses a container whose GPUs are not served now.
func (h *Hook) checkMPS(c Container, given Assignment) error {
	if !given.byMPS() {
		return nil
	}
	if h.MPS == nil {
		return c.refuse(ReasonMPS, "its GPU was shared by MPS, which sharing.method in config.toml no longer says: delete the pod to have it placed anew")
	}
	var uuids []string
	for _, d := range given.Devices {
		uuids = append(uuids, d.UUID)
	}
	if err := h.MPS.Ready(uuids); err != nil {
		return c.refuse(ReasonMPS, "its GPU is shared by MPS, and %w", err)
	}
	return nil
}

// joinMPS makes the container's processes clients. What a variable that stands
// twice says cannot be changed here: the interposer, which reads the limits,
// sets it right when CUDA starts.
func (a *Adjustment) joinMPS(c Container, r Rules, given Assignment) {
	if !given.byMPS() {
		return
	}
	a.Mounts = append(a.Mounts,
		bind(r.MPSDir, layout.ContainerMPS, append(bindOptions(true), "nodev", "noexec")),
		bind(r.SHMDir, layout.ContainerSHM, append(bindOptions(false), "nodev", "noexec")))
	a.set(c, mpsPipes, layout.ContainerMPS)
	a.set(c, mpsMemory, memoryLimits(given.Devices))
	if ppm := leastPart(given.Devices); ppm < request.Whole {
		if own, _ := c.variable(mpsPercentage); !narrower(own, ppm) {
			a.set(c, mpsPercentage, strconv.FormatFloat(float64(ppm)*100/request.Whole, 'f', -1, 64))
		}
	}
}

func (a *Adjustment) set(c Container, name, value string) {
	if _, count := c.variable(name); count <= 1 {
		a.Env = append(a.Env, Variable{name, value})
	}
}

// narrower tells whether a percentage that the user chose is within the limit.
func narrower(percentage string, ppm uint32) bool {
	own, err := strconv.ParseFloat(percentage, 64)
	return err == nil && own > 0 && own*request.Whole/100 <= float64(ppm)
}

// leastPart is the least of a container's limits: the service knows one for all
// GPUs of a process.
func leastPart(devices []placement.Device) uint32 {
	part := uint32(request.Whole)
	for _, d := range devices {
		if d.ComputePPM != 0 {
			part = min(part, d.ComputePPM)
		}
	}
	return part
}

// memoryLimits is "0=4096M,1=4096M": what each process may hold, by the ordinals
// that it sees its GPUs by. In which order that is, the program can say, so each has
// the most of any: to hold each GPU to its own bytes is the interposer's.
func memoryLimits(devices []placement.Device) string {
	var most uint64
	for _, d := range devices {
		most = max(most, (d.Limit()+request.MiB-1)/request.MiB)
	}
	limits := make([]string, len(devices))
	for i := range devices {
		limits[i] = fmt.Sprintf("%d=%dM", i, most)
	}
	return strings.Join(limits, ",")
}

// SPDX-License-Identifier: Apache-2.0

// Package nvml queries NVIDIA's management library about the node's GPUs. The
// package is the only Go package of the project that needs cgo.
package nvml

import (
	"errors"
	"fmt"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Options locate the driver.
type Options struct {
	// Root is the driver's root file system, "" or "/" for the process's own.
	Root string
	// Library is NVML's path. "" selects a search under Root.
	Library string
}

// Driver lists GPUs through NVML. Only one goroutine at a time may use a
// Driver.
type Driver struct {
	Options
	lib gonvml.Interface // nil until initialised
	// unlisted is the error of each list of processes, nil if the driver's lists are usable.
	unlisted error
}

// New returns a Driver that opens NVML at the first call.
func New(opts Options) *Driver { return &Driver{Options: opts} }

// List returns the GPUs that the driver lists now.
func (d *Driver) List() ([]gpu.GPU, error) {
	if err := d.open(); err != nil {
		return nil, err
	}
	count, ret := d.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		// Reopen the library at the next call, as a reloaded driver requires.
		d.close()
		return nil, nvmlError("count the GPUs", ret)
	}
	var gpus []gpu.GPU
	for index := range count {
		gpus = append(gpus, d.describe(index)...)
	}
	return gpus, nil
}

func (d *Driver) open() error {
	if d.lib != nil {
		return nil
	}
	path, err := FindLibrary(d.Root, d.Library)
	if err != nil {
		return err
	}
	lib := gonvml.New(gonvml.WithLibraryPath(path))
	if ret := lib.Init(); ret != gonvml.SUCCESS {
		return fmt.Errorf("%s: %w", path, nvmlError("start NVML", ret))
	}
	d.lib, d.unlisted = lib, usableLists(lib)
	return nil
}

func (d *Driver) close() {
	// close ignores the error: the next call opens a new session anyway.
	_ = d.lib.Shutdown()
	d.lib = nil
}

// describe returns the GPU with this index, or the MIG devices of a GPU in MIG mode. If describe
// cannot read the complete description, the GPU is unhealthy. If describe cannot read the UUID, the
// UUID is empty.
func (d *Driver) describe(index int) []gpu.GPU {
	g := gpu.GPU{Index: index}
	device, ret := d.lib.DeviceGetHandleByIndex(index)
	if ret != gonvml.SUCCESS {
		g.Reason = nvmlError("open the GPU", ret).Error()
		return []gpu.GPU{g}
	}
	if err := identify(device, &g); err != nil {
		g.Reason = err.Error()
		return []gpu.GPU{g}
	}
	var asked string
	if asked, g.RecoveryKnown = recovery(device); asked != "" {
		g.Reason = "the driver requests " + asked
	}
	g.Healthy = asked == ""
	switch mig, err := inMIGMode(device); {
	case err != nil:
		g.Healthy, g.Reason = false, err.Error()
	case mig:
		return describeMIG(device, g)
	}
	return []gpu.GPU{g}
}

// identify reads the fixed properties of a GPU. Success proves that the GPU
// answers.
func identify(device gonvml.Device, g *gpu.GPU) error {
	var ret gonvml.Return
	if g.UUID, ret = device.GetUUID(); ret != gonvml.SUCCESS {
		g.UUID = ""
		return nvmlError("read the GPU's UUID", ret)
	}
	if g.Name, ret = device.GetName(); ret != gonvml.SUCCESS {
		return nvmlError("read the GPU's name", ret)
	}
	if g.Minor, ret = device.GetMinorNumber(); ret != gonvml.SUCCESS {
		return nvmlError("read the GPU's minor number", ret)
	}
	pci, ret := device.GetPciInfo()
	if ret != gonvml.SUCCESS {
		return nvmlError("read the GPU's PCI address", ret)
	}
	g.PCIBusID = busID(pci.BusId)
	g.Multiprocessors = multiprocessors(device)
	// The memory is last, because a GPU without memory is not completely described.
	memory, ret := device.GetMemoryInfo()
	if ret != gonvml.SUCCESS {
		return nvmlError("read the GPU's memory", ret)
	}
	g.MemoryBytes = memory.Total
	return nil
}

func busID[C ~int8 | ~uint8](chars [32]C) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// multiprocessors returns the number of SMs, which NVML reports only as cores.
// multiprocessors returns 0 if NVML reports no cores. No decision depends on
// the number.
func multiprocessors(device gonvml.Device) int {
	cores, ret := device.GetNumGpuCores()
	if ret != gonvml.SUCCESS {
		return 0
	}
	major, minor, ret := device.GetCudaComputeCapability()
	if ret != gonvml.SUCCESS {
		return 0
	}
	return cores / coresPerMultiprocessor(major, minor)
}

// coresPerMultiprocessor returns the number of FP32 cores of an SM, by compute
// capability, as in the CUDA C Programming Guide.
func coresPerMultiprocessor(major, minor int) int {
	switch {
	case major == 3:
		return 192
	case major == 7, major == 6 && minor == 0, major == 8 && minor == 0:
		return 64
	default:
		return 128
	}
}

// These errors concern the whole driver. Callers handle each error separately.
var (
	// ErrDriverNotLoaded means that the library is installed, but the kernel module is
	// not loaded.
	ErrDriverNotLoaded = errors.New("the NVIDIA kernel driver is not loaded")
	// ErrDriverChanged means that the version of the kernel module differs from the
	// library that this process has loaded.
	ErrDriverChanged = errors.New("the NVIDIA driver was replaced while the agent ran")
)

func nvmlError(doing string, ret gonvml.Return) error {
	switch ret {
	case gonvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("%s: %w: load it with modprobe nvidia", doing, ErrDriverNotLoaded)
	case gonvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%s: %w: restart the agent, and reboot the node if that does not help", doing, ErrDriverChanged)
	case gonvml.ERROR_NO_PERMISSION:
		return fmt.Errorf("%s: no permission: the agent needs /dev/nvidiactl and the GPUs' device nodes", doing)
	case gonvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("%s: the GPU has fallen off the bus or is otherwise lost: reboot the node", doing)
	case gonvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("%s: the library cannot be loaded: it must be for this machine, with the libraries that it needs", doing)
	default:
		return fmt.Errorf("%s: %s (NVML error %d)", doing, ret.Error(), int(ret))
	}
}

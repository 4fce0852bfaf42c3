package gpu

import (
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// nvmlDriver lists GPUs over NVML. It is used by one goroutine at a time.
type nvmlDriver struct {
	root, library string
	lib           nvml.Interface // nil until initialised
}

func (d *nvmlDriver) list() ([]GPU, error) {
	if err := d.open(); err != nil {
		return nil, err
	}
	count, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		// Begin anew next time: a driver that was reloaded needs it.
		d.close()
		return nil, nvmlError("count the GPUs", ret)
	}
	gpus := make([]GPU, count)
	for index := range gpus {
		gpus[index] = d.describe(index)
	}
	return gpus, nil
}

func (d *nvmlDriver) open() error {
	if d.lib != nil {
		return nil
	}
	path, err := FindLibrary(d.root, d.library)
	if err != nil {
		return err
	}
	lib := nvml.New(nvml.WithLibraryPath(path))
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return fmt.Errorf("%s: %w", path, nvmlError("start NVML", ret))
	}
	d.lib = lib
	return nil
}

func (d *nvmlDriver) close() {
	// What a driver in trouble says to this changes nothing.
	_ = d.lib.Shutdown()
	d.lib = nil
}

// describe gives the GPU of an index. One that cannot be described in full
// is unhealthy; its UUID is empty if not even that is known.
func (d *nvmlDriver) describe(index int) GPU {
	g := GPU{Index: index}
	device, ret := d.lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		g.Reason = nvmlError("open the GPU", ret).Error()
		return g
	}
	if err := identify(device, &g); err != nil {
		g.Reason = err.Error()
		return g
	}
	if mode, _, ret := device.GetMigMode(); ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
		g.Reason = "MIG mode is on, and MIG devices are not shared: turn it off with nvidia-smi -mig 0"
		return g
	}
	g.Healthy = true
	return g
}

// identify reads what is fixed for a GPU, and by that proves that it answers.
func identify(device nvml.Device, g *GPU) error {
	var ret nvml.Return
	if g.UUID, ret = device.GetUUID(); ret != nvml.SUCCESS {
		g.UUID = ""
		return nvmlError("read the GPU's UUID", ret)
	}
	if g.Name, ret = device.GetName(); ret != nvml.SUCCESS {
		return nvmlError("read the GPU's name", ret)
	}
	if g.Minor, ret = device.GetMinorNumber(); ret != nvml.SUCCESS {
		return nvmlError("read the GPU's minor number", ret)
	}
	memory, ret := device.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return nvmlError("read the GPU's memory", ret)
	}
	g.MemoryBytes = memory.Total
	pci, ret := device.GetPciInfo()
	if ret != nvml.SUCCESS {
		return nvmlError("read the GPU's PCI address", ret)
	}
	g.PCIBusID = busID(pci.BusId)
	g.Multiprocessors = multiprocessors(device)
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

// multiprocessors counts the SMs, which NVML tells only as cores; 0 where it
// does not tell. Nothing is decided by it.
func multiprocessors(device nvml.Device) int {
	cores, ret := device.GetNumGpuCores()
	if ret != nvml.SUCCESS {
		return 0
	}
	major, minor, ret := device.GetCudaComputeCapability()
	if ret != nvml.SUCCESS {
		return 0
	}
	return cores / coresPerMultiprocessor(major, minor)
}

// coresPerMultiprocessor is the number of FP32 cores of an SM, by compute
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

// What is wrong with the driver as a whole, for callers that treat it apart.
var (
	// ErrDriverNotLoaded: there is the library, but no kernel module.
	ErrDriverNotLoaded = errors.New("the NVIDIA kernel driver is not loaded")
	// ErrDriverChanged: the kernel module is of another version than the
	// library that this process has loaded.
	ErrDriverChanged = errors.New("the NVIDIA driver was changed under the agent")
)

func nvmlError(doing string, ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("%s: %w: load it with modprobe nvidia", doing, ErrDriverNotLoaded)
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return fmt.Errorf("%s: %w: restart the agent, and reboot the node if that does not help", doing, ErrDriverChanged)
	case nvml.ERROR_NO_PERMISSION:
		return fmt.Errorf("%s: no permission: the agent needs /dev/nvidiactl and the GPUs' device nodes", doing)
	case nvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("%s: the GPU has fallen off the bus or is otherwise lost: reboot the node", doing)
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("%s: the library cannot be loaded: it must be for this machine, with the libraries that it needs", doing)
	default:
		return fmt.Errorf("%s: %s (NVML error %d)", doing, ret.Error(), int(ret))
	}
}

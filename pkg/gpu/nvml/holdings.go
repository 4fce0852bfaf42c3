// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"sync"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Holdings queries the physical memory that GPUs and their processes hold. Unlike a Driver,
// Holdings allows concurrent calls for several GPUs, so that a GPU that hangs does not block other
// GPUs.
type Holdings struct {
	Options
	// Holdings holds mu during no driver call except the calls that open the driver.
	mu  sync.Mutex
	lib gonvml.Interface // nil until opened
	// unlisted is the error of each list of processes, nil if the driver's lists are usable.
	unlisted error
	devices  map[string]gonvml.Device
}

// NewHoldings returns Holdings that open the driver at the first call.
func NewHoldings(opts Options) *Holdings { return &Holdings{Options: opts} }

// Held returns the physical memory in bytes that each compute process holds on a GPU,
// by pid.
func (h *Holdings) Held(uuid string) (gpu.HeldBytes, error) {
	device, err := h.device(uuid)
	if err != nil {
		return nil, err
	}
	if err := h.listable(); err != nil {
		return nil, err
	}
	running, ret := device.GetComputeRunningProcesses()
	if ret != gonvml.SUCCESS {
		return nil, h.failed(uuid, "list the GPU's processes", ret)
	}
	held := gpu.HeldBytes{}
	for _, p := range running {
		if p.UsedGpuMemory != notAvailable {
			held[int(p.Pid)] += p.UsedGpuMemory
		}
	}
	return held, nil
}

// Used returns the used memory of a GPU in bytes, for all users together.
func (h *Holdings) Used(uuid string) (uint64, error) {
	device, err := h.device(uuid)
	if err != nil {
		return 0, err
	}
	memory, ret := device.GetMemoryInfo()
	if ret != gonvml.SUCCESS {
		return 0, h.failed(uuid, "read the GPU's memory", ret)
	}
	return memory.Used, nil
}

// Version returns the driver's version, such as "580.159.04".
func (h *Holdings) Version() (string, error) {
	lib, err := h.open()
	if err != nil {
		return "", err
	}
	version, ret := lib.SystemGetDriverVersion()
	if ret != gonvml.SUCCESS {
		return "", h.failed("", "read the driver's version", ret)
	}
	return version, nil
}

func (h *Holdings) open() (gonvml.Interface, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lib == nil {
		driver := New(h.Options)
		if err := driver.open(); err != nil {
			return nil, err
		}
		h.lib, h.unlisted, h.devices = driver.lib, driver.unlisted, map[string]gonvml.Device{}
	}
	return h.lib, nil
}

func (h *Holdings) listable() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unlisted
}

func (h *Holdings) device(uuid string) (gonvml.Device, error) {
	lib, err := h.open()
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	device, ok := h.devices[uuid]
	h.mu.Unlock()
	if ok && isDevice(device, uuid) {
		return device, nil
	}
	device, ret := find(lib, uuid)
	if ret != gonvml.SUCCESS {
		return nil, h.failed(uuid, "open the GPU", ret)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lib == lib { // no other caller has closed the library meanwhile
		h.devices[uuid] = device
	}
	return device, nil
}

// isDevice reports whether a known handle is still a device's. The driver may reuse the handle of a MIG
// device for another MIG device.
func isDevice(device gonvml.Device, uuid string) bool {
	if !gpu.IsMIG(uuid) {
		return true
	}
	own, ret := device.GetUUID()
	return ret == gonvml.SUCCESS && own == uuid
}

// failed drops the session, so that the next call opens it again, as a reloaded
// driver requires.
func (h *Holdings) failed(uuid, doing string, ret gonvml.Return) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.devices, uuid)
	switch ret {
	case gonvml.ERROR_UNINITIALIZED, gonvml.ERROR_DRIVER_NOT_LOADED, gonvml.ERROR_LIB_RM_VERSION_MISMATCH:
		if h.lib != nil {
			_ = h.lib.Shutdown()
			h.lib = nil
		}
	default: // the session stays usable
	}
	return nvmlError(doing, ret)
}

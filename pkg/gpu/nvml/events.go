// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"math"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Events receives the driver's reports of XIDs. Events has a separate session
// of the driver, so that waiting for events does not block other queries. Only
// one goroutine may use Events.
type Events struct {
	driver Driver
	set    gonvml.EventSet // nil until created
	// heard are the GPUs whose events the set contains, by UUID.
	heard map[string]gonvml.Device
}

// NewEvents returns Events that open the driver at the first call.
func NewEvents(opts Options) *Events { return &Events{driver: Driver{Options: opts}} }

// Next returns the next XID, or gpu.ErrNoEvent if no XID arrives within the
// time.
func (e *Events) Next(patience time.Duration) (gpu.XID, error) {
	if err := e.listen(); err != nil {
		e.Close()
		return gpu.XID{}, err
	}
	if len(e.heard) == 0 {
		time.Sleep(patience)
		return gpu.XID{}, gpu.ErrNoEvent
	}
	data, ret := e.set.Wait(uint32(patience.Milliseconds()))
	switch {
	case ret == gonvml.ERROR_TIMEOUT, ret == gonvml.SUCCESS && data.EventType != gonvml.EventTypeXidCriticalError:
		return gpu.XID{}, gpu.ErrNoEvent
	case ret != gonvml.SUCCESS:
		// A set with a lost GPU is unusable: the next set contains the
		// remaining GPUs.
		e.Close()
		return gpu.XID{}, nvmlError("wait for events", ret)
	}
	return gpu.XID{UUID: e.name(data.Device), Number: data.EventData, Instance: instanceOf(data)}, nil
}

// noInstance is NVML's GPU instance id of an event that concerns the whole GPU.
const noInstance = math.MaxUint32

// instanceOf returns the GPU instance of an event, the id plus 1, or 0 for the whole GPU. NVML
// reports instances only of GPUs in MIG mode, and 0 for other GPUs.
func instanceOf(data gonvml.EventData) int {
	if mig, _ := inMIGMode(data.Device); !mig || data.GpuInstanceId == noInstance { // an unknown mode concerns the whole GPU
		return 0
	}
	return int(data.GpuInstanceId) + 1
}

// Close closes the session of the driver.
func (e *Events) Close() {
	if e.set != nil {
		// Close ignores the error: the next call opens a new session anyway.
		_ = e.set.Free()
		e.set, e.heard = nil, nil
	}
	if e.driver.lib != nil {
		e.driver.close()
	}
}

// listen registers for the events of all GPUs that answer.
func (e *Events) listen() error {
	if err := e.driver.open(); err != nil {
		return err
	}
	if e.set == nil {
		set, ret := e.driver.lib.EventSetCreate()
		if ret != gonvml.SUCCESS {
			return nvmlError("subscribe to the driver's events", ret)
		}
		e.set, e.heard = set, map[string]gonvml.Device{}
	}
	count, ret := e.driver.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return nvmlError("count the GPUs", ret)
	}
	var failed error
	for index := range count {
		device, uuid := e.reporter(index)
		if uuid == "" || e.heard[uuid] != nil {
			continue
		}
		if err := e.try(device); err != nil {
			failed = cmp.Or(failed, err)
			continue // the next call retries the GPU, which must not silence the others
		}
		if ret := device.RegisterEvents(gonvml.EventTypeXidCriticalError, e.set); ret != gonvml.SUCCESS {
			return nvmlError("subscribe to the GPU's events", ret)
		}
		e.heard[uuid] = device
	}
	if len(e.heard) == 0 {
		return failed
	}
	return nil
}

// try adds a GPU to a separate set, because an error may leave the set in an undefined state.
func (e *Events) try(device gonvml.Device) error {
	set, ret := e.driver.lib.EventSetCreate()
	if ret != gonvml.SUCCESS {
		return nvmlError("subscribe to the driver's events", ret)
	}
	defer func() { _ = set.Free() }()
	if ret := device.RegisterEvents(gonvml.EventTypeXidCriticalError, set); ret != gonvml.SUCCESS {
		return nvmlError("subscribe to the GPU's events", ret)
	}
	return nil
}

// reporter returns the GPU of an index. uuid is empty unless the GPU answers
// and reports XIDs.
func (e *Events) reporter(index int) (device gonvml.Device, uuid string) {
	device, ret := e.driver.lib.DeviceGetHandleByIndex(index)
	if ret != gonvml.SUCCESS {
		return nil, ""
	}
	supported, ret := device.GetSupportedEventTypes()
	if ret != gonvml.SUCCESS || supported&gonvml.EventTypeXidCriticalError == 0 {
		return nil, ""
	}
	uuid, ret = device.GetUUID()
	if ret != gonvml.SUCCESS {
		return nil, ""
	}
	return device, uuid
}

// name returns the UUID of an event's GPU, or "" for an unknown GPU.
func (e *Events) name(device gonvml.Device) string {
	for uuid, d := range e.heard {
		if d == device {
			return uuid
		}
	}
	return ""
}

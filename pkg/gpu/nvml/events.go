package nvml

import (
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// Events are the driver's reports of XIDs. It opens the driver for itself, as
// to wait for events must not keep others from asking. It is used by one
// goroutine.
type Events struct {
	driver Driver
	set    gonvml.EventSet // nil until there is one
	// heard are the GPUs whose reports the set has, by UUID.
	heard map[string]gonvml.Device
}

// NewEvents gives events of a driver that is opened when it is first asked.
func NewEvents(opts Options) *Events { return &Events{driver: Driver{Options: opts}} }

// Next gives the next XID, or gpu.ErrNoEvent if none comes within the time.
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
		// A set with a lost GPU is of no use: the next one has those that
		// are left.
		e.Close()
		return gpu.XID{}, nvmlError("wait for events", ret)
	}
	return gpu.XID{UUID: e.name(data.Device), Number: data.EventData}, nil
}

// Close lets go of the driver.
func (e *Events) Close() {
	if e.set != nil {
		// What a driver in trouble says to this changes nothing.
		_ = e.set.Free()
		e.set, e.heard = nil, nil
	}
	if e.driver.lib != nil {
		e.driver.close()
	}
}

// listen sees to it that all GPUs that answer are heard.
func (e *Events) listen() error {
	if err := e.driver.open(); err != nil {
		return err
	}
	if e.set == nil {
		set, ret := e.driver.lib.EventSetCreate()
		if ret != gonvml.SUCCESS {
			return nvmlError("listen to the driver", ret)
		}
		e.set, e.heard = set, map[string]gonvml.Device{}
	}
	count, ret := e.driver.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return nvmlError("count the GPUs", ret)
	}
	for index := range count {
		if err := e.register(index); err != nil {
			return err
		}
	}
	return nil
}

// register adds a GPU to the set, unless it does not answer or reports nothing.
func (e *Events) register(index int) error {
	device, uuid := e.reporter(index)
	if uuid == "" || e.heard[uuid] != nil {
		return nil
	}
	ret := device.RegisterEvents(gonvml.EventTypeXidCriticalError, e.set)
	if ret != gonvml.SUCCESS {
		return nvmlError("listen to the GPU", ret)
	}
	e.heard[uuid] = device
	return nil
}

// reporter is the GPU of an index; its UUID is empty unless it answers and
// reports XIDs.
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

// name is the UUID of a GPU that an event is about, "" if it is not known.
func (e *Events) name(device gonvml.Device) string {
	for uuid, d := range e.heard {
		if d == device {
			return uuid
		}
	}
	return ""
}

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// sampleAttempts bounds the queries for samples. A query fails if its buffer has no room for all
// samples.
const sampleAttempts = 3

// Samples returns the driver's measurements of processes since a time, by the GPU's UUID.
// Samples omits GPUs that the driver does not measure.
func (d *Driver) Samples(since time.Time) (map[string][]gpu.Sample, error) {
	samples := map[string][]gpu.Sample{}
	err := d.each(func(uuid string, device gonvml.Device) {
		if measured, ok := samplesOf(device, since); ok {
			samples[uuid] = measured
		}
	})
	return samples, err
}

// Loads returns the driver's measurements of the GPUs since a time, by UUID. Loads omits
// GPUs that the driver does not measure.
func (d *Driver) Loads(since time.Time) (map[string][]gpu.Load, error) {
	loads := map[string][]gpu.Load{}
	err := d.each(func(uuid string, device gonvml.Device) {
		kind, measured, ret := device.GetSamples(gonvml.GPU_UTILIZATION_SAMPLES, uint64(since.UnixMicro()))
		if ret != gonvml.SUCCESS || kind != gonvml.VALUE_TYPE_UNSIGNED_INT {
			return
		}
		for _, m := range measured {
			loads[uuid] = append(loads[uuid], gpu.Load{
				At: time.UnixMicro(int64(m.TimeStamp)), Percent: binary.NativeEndian.Uint32(m.SampleValue[:]),
			})
		}
	})
	return loads, err
}

// samplesOf returns a GPU's samples, and reports whether the driver measures the GPU. If the driver
// measures a GPU without samples, no process used the GPU.
func samplesOf(device gonvml.Device, since time.Time) (samples []gpu.Sample, ok bool) {
	for range sampleAttempts {
		measured, ret := device.GetProcessUtilization(uint64(since.UnixMicro()))
		switch ret {
		case gonvml.SUCCESS:
			for _, m := range measured {
				samples = append(samples, gpu.Sample{
					PID: int(m.Pid), At: time.UnixMicro(int64(m.TimeStamp)),
					Percent: m.SmUtil, Encoder: m.EncUtil, Decoder: m.DecUtil,
				})
			}
			return samples, true
		case gonvml.ERROR_NOT_FOUND:
			return nil, true
		case gonvml.ERROR_INSUFFICIENT_SIZE:
			if len(measured) == 0 {
				return nil, true // an empty buffer is enough: the driver has no samples
			}
		default:
			return nil, false
		}
	}
	return nil, false
}

// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// sampleAttempts bounds the queries for samples. A query fails if samples arrive while it runs.
const sampleAttempts = 3

// Samples returns the driver's measurements of processes after a time, by the GPU's UUID.
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
			at := time.UnixMicro(int64(m.TimeStamp))
			if !at.After(since) {
				continue // an empty entry: the driver returned fewer samples than it had announced
			}
			loads[uuid] = append(loads[uuid], gpu.Load{At: at, Percent: binary.NativeEndian.Uint32(m.SampleValue[:])})
		}
	})
	return loads, err
}

// samplesOf returns a GPU's samples, and reports whether the driver measures the GPU. If the driver
// measures a GPU without samples, no process used the GPU.
func samplesOf(device gonvml.Device, since time.Time) (samples []gpu.Sample, ok bool) {
	for range sampleAttempts {
		measured, ret, complete := queryUtilization(device, since)
		switch {
		case !complete:
			continue
		case ret == gonvml.SUCCESS:
			for _, m := range measured {
				if at := time.UnixMicro(int64(m.TimeStamp)); at.After(since) {
					samples = append(samples, gpu.Sample{
						PID: int(m.Pid), At: at, Percent: m.SmUtil, Encoder: m.EncUtil, Decoder: m.DecUtil,
					})
				}
			}
			return samples, true
		case ret == gonvml.ERROR_NOT_FOUND:
			return nil, true
		case ret == gonvml.ERROR_INSUFFICIENT_SIZE && len(measured) == 0:
			return nil, true // an empty buffer is enough: the driver has no samples
		case ret != gonvml.ERROR_INSUFFICIENT_SIZE:
			return nil, false
		}
	}
	return nil, false
}

// queryUtilization queries the driver for samples once, and reports whether the answer is complete.
// go-nvml 0.13.4 first queries their number. If a sample arrives before the second query, the driver
// returns a larger number. go-nvml then slices its buffer to that number, and panics.
func queryUtilization(device gonvml.Device, since time.Time) (samples []gonvml.ProcessUtilizationSample, ret gonvml.Return, complete bool) {
	defer func() { complete = recover() == nil }()
	samples, ret = device.GetProcessUtilization(uint64(since.UnixMicro()))
	return samples, ret, true
}

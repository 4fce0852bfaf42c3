// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Modes changes the compute modes of GPUs. Modes opens the driver for each call,
// since calls are rare.
type Modes struct{ Options }

// Set sets the compute mode of a GPU, by NVML's number, and returns the previous
// mode.
func (m Modes) Set(uuid string, mode int) (before int, err error) {
	driver := New(m.Options)
	if err := driver.open(); err != nil {
		return 0, err
	}
	defer driver.close()
	device, ret := find(driver.lib, uuid)
	if ret != gonvml.SUCCESS {
		return 0, nvmlError("open the GPU", ret)
	}
	old, ret := device.GetComputeMode()
	if ret != gonvml.SUCCESS {
		return 0, nvmlError("read the compute mode", ret)
	}
	if int(old) == mode {
		return mode, nil
	}
	if ret := device.SetComputeMode(gonvml.ComputeMode(mode)); ret != gonvml.SUCCESS {
		return 0, nvmlError(fmt.Sprintf("set the compute mode from %d to %d", old, mode), ret)
	}
	return int(old), nil
}

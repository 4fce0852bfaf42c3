// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"encoding/binary"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// recoveries describe the recovery actions of NVML's
// nvmlDeviceGpuRecoveryAction_t.
var recoveries = map[gonvml.DeviceGpuRecoveryAction]string{
	gonvml.GPU_RECOVERY_ACTION_GPU_RESET:           "a reset: end all its processes and run nvidia-smi --gpu-reset",
	gonvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         "a reboot of the node",
	gonvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           "an end of peer-to-peer work",
	gonvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     "a reset once its work has ended: nvidia-smi --gpu-reset",
	gonvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: "a recovery of its IMEX domain",
	gonvml.GPU_RECOVERY_ACTION_BUS_RESET:           "a reset of its bus",
	gonvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       "a reboot of the system",
}

// recovery returns the recovery action that the driver requests for a GPU, ""
// for none. known is false for older drivers, which do not support the query.
func recovery(device gonvml.Device) (asked string, known bool) {
	values := []gonvml.FieldValue{{FieldId: gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := device.GetFieldValues(values); ret != gonvml.SUCCESS || gonvml.Return(values[0].NvmlReturn) != gonvml.SUCCESS {
		return "", false
	}
	action := gonvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:]))
	if action == gonvml.GPU_RECOVERY_ACTION_NONE {
		return "", true
	}
	asked, ok := recoveries[action]
	if !ok {
		asked = "a recovery that this version does not know: see nvidia-smi -q"
	}
	return asked, true
}

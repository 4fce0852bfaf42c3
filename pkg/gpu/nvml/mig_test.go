// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// TestDevicesThatShareAnInstance checks that MIG devices of one GPU instance are unhealthy, and keep an
// earlier reason. The device that fills its GPU instance stays healthy.
func TestDevicesThatShareAnInstance(t *testing.T) {
	device := func(uuid string, instance, compute int) gpu.GPU {
		return gpu.GPU{UUID: uuid, Healthy: true, MIG: gpu.MIG{Parent: "GPU-a", Instance: instance, Compute: compute}}
	}
	lost := device("MIG-3", 2, 1)
	lost.Healthy, lost.Reason = false, "lost"
	for _, g := range withoutShared([]gpu.GPU{device("MIG-1", 1, 0), device("MIG-2", 2, 0), lost}) {
		want := map[string]string{"MIG-1": "", "MIG-2": "shares the memory of GPU instance 2", "MIG-3": "lost"}[g.UUID]
		if g.Healthy != (want == "") || !strings.Contains(g.Reason, want) {
			t.Errorf("%s is healthy: %t, %s", g.UUID, g.Healthy, g.Reason)
		}
	}
}

// TestAGPUWhoseMIGModeIsUnknown checks that a GPU is unhealthy unless its MIG mode is known. A GPU in
// MIG mode would otherwise replace its MIG devices, and be offered as a whole.
func TestAGPUWhoseMIGModeIsUnknown(t *testing.T) {
	for ret, healthy := range map[gonvml.Return]bool{
		gonvml.SUCCESS: true, gonvml.ERROR_NOT_SUPPORTED: true, gonvml.ERROR_FUNCTION_NOT_FOUND: true,
		gonvml.ERROR_UNKNOWN: false, gonvml.ERROR_TIMEOUT: false, gonvml.ERROR_GPU_IS_LOST: false,
	} {
		device := &mock.Device{
			GetUUIDFunc:        func() (string, gonvml.Return) { return "GPU-a", gonvml.SUCCESS },
			GetNameFunc:        func() (string, gonvml.Return) { return "NVIDIA H100", gonvml.SUCCESS },
			GetMinorNumberFunc: func() (int, gonvml.Return) { return 0, gonvml.SUCCESS },
			GetMemoryInfoFunc:  func() (gonvml.Memory, gonvml.Return) { return gonvml.Memory{Total: 1 << 30}, gonvml.SUCCESS },
			GetPciInfoFunc:     func() (gonvml.PciInfo, gonvml.Return) { return gonvml.PciInfo{}, gonvml.SUCCESS },
			GetNumGpuCoresFunc: func() (int, gonvml.Return) { return 0, gonvml.ERROR_NOT_SUPPORTED },
			GetFieldValuesFunc: func([]gonvml.FieldValue) gonvml.Return { return gonvml.ERROR_NOT_SUPPORTED },
			GetMigModeFunc:     func() (int, int, gonvml.Return) { return gonvml.DEVICE_MIG_DISABLE, 0, ret },
		}
		driver := Driver{lib: &mock.Interface{DeviceGetHandleByIndexFunc: func(int) (gonvml.Device, gonvml.Return) { return device, gonvml.SUCCESS }}}
		got := driver.describe(0)
		if len(got) != 1 || got[0].UUID != "GPU-a" || got[0].Healthy != healthy || (got[0].Reason == "") != healthy {
			t.Errorf("%v: the driver describes %+v", ret, got)
		}
	}
}

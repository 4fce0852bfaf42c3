// SPDX-License-Identifier: Apache-2.0

package adjust

import "github.com/nri-vgpu/nri-vgpu/internal/container/gpuaccess"

// These constants name CDI devices of nri-vgpu, which set variables that an NRI plugin cannot
// change. PreloadDevice sets LD_PRELOAD to the interposer. CapabilitiesDevice restricts the driver
// capabilities to the allowed capabilities. NoDevices hides all GPUs from the NVIDIA runtime. A
// device named by a GPU's UUID exposes that GPU.
const (
	PreloadDevice      = "preload"
	CapabilitiesDevice = "capabilities"
)

// EnvDevice returns the fully qualified name of one of nri-vgpu's own CDI devices.
func EnvDevice(name string) string { return gpuaccess.OwnKind + "=" + name }

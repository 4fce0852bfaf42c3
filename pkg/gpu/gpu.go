// SPDX-License-Identifier: Apache-2.0

// Package gpu maintains the inventory and health of the node's GPUs. Package
// nvml queries the driver, so that this package needs no cgo.
package gpu

// GPU is one physical GPU or one MIG device, as the driver describes it.
type GPU struct {
	// UUID is the driver's name of the device: "GPU-…" or "MIG-…". The UUID is
	// the only identity used across the project; indices change with reboots.
	UUID string `json:"uuid"`
	// Index is NVML's index of the device. Index orders GPUs for display.
	Index int `json:"index"`
	// Minor is the number of the device node, /dev/nvidia<Minor>.
	Minor int `json:"minor"`
	// Name is the product name, such as "NVIDIA H200".
	Name string `json:"name"`
	// MemoryBytes is the total size of the framebuffer as NVML reports it.
	MemoryBytes uint64 `json:"memoryBytes"`
	// Multiprocessors is the number of SMs.
	Multiprocessors int `json:"multiprocessors"`
	// PCIBusID is NVML's bus id, such as "00000000:3B:00.0".
	PCIBusID string `json:"pciBusID"`
	// Healthy is false if new containers must not get the GPU.
	Healthy bool `json:"healthy"`
	// Reason describes in one line why the GPU is unhealthy.
	Reason string `json:"reason,omitempty"`
	// Foreign reports whether another device plugin offers the GPU, too. The GPU is then unhealthy.
	Foreign bool `json:"foreign,omitempty"`
	// RecoveryKnown reports whether the driver can request a reset of the GPU or a reboot. If
	// RecoveryKnown is true, Healthy is false while the driver requests a recovery. Older drivers
	// cannot request a recovery.
	RecoveryKnown bool `json:"-"`
}

// SPDX-License-Identifier: Apache-2.0

// Package gpu maintains the inventory and health of the node's GPUs. Package
// nvml queries the driver, so that this package needs no cgo.
package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// MIG is the place of a MIG device on its physical GPU. The zero value means that a GPU is no MIG
// device.
type MIG struct {
	// Parent is the UUID of the physical GPU.
	Parent string `json:"parent"`
	// Index is NVML's index of the MIG device on the physical GPU.
	Index int `json:"index"`
	// Instance is the id of the GPU instance, whose MIG devices fail together. Compute is the id of
	// the compute instance.
	Instance int `json:"instance"`
	Compute  int `json:"compute"`
}

// GPU is one physical GPU or one MIG device, as the driver describes it.
type GPU struct {
	// UUID is the driver's name of the device: "GPU-…" or "MIG-…". The UUID is
	// the only identity used across the project; indices change with reboots.
	UUID string `json:"uuid"`
	// Index is NVML's index of the device, for a MIG device the index of its GPU. Index orders
	// GPUs for display.
	Index int `json:"index"`
	// MIG is the place of a MIG device, and zero for a physical GPU.
	MIG MIG `json:"mig,omitzero"`
	// Undivided reports whether a physical GPU is in MIG mode without MIG devices. No program can use
	// the GPU.
	Undivided bool `json:"undivided,omitempty"`
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

// Card returns the UUID of the physical GPU.
func (g GPU) Card() string {
	if g.MIG == (MIG{}) {
		return g.UUID
	}
	return g.MIG.Parent
}

// Number returns a GPU's number in the form of CDI: "0", and "0:1" for the MIG device 1 of GPU 0.
func Number(index int, mig MIG) string {
	if mig == (MIG{}) {
		return strconv.Itoa(index)
	}
	return fmt.Sprintf("%d:%d", index, mig.Index)
}

// Number returns the GPU's number as the function Number does.
func (g GPU) Number() string { return Number(g.Index, g.MIG) }

// IsMIG reports whether a UUID is a MIG device's, which the driver begins with "MIG-".
func IsMIG(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// Profile returns a MIG device's profile, such as "1g.10gb", or "" for a physical GPU. The driver
// writes the profile into the device's name.
func (g GPU) Profile() string {
	if g.MIG == (MIG{}) {
		return ""
	}
	_, profile, _ := strings.Cut(g.Name, " MIG ")
	return profile
}

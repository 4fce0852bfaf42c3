// Package gpu is the inventory and health of the node's GPUs. How the driver
// is asked is package nvml's affair: this one needs no cgo.
package gpu

// GPU is one physical GPU, or one MIG device, as the driver describes it.
type GPU struct {
	// UUID is the driver's name for the device: "GPU-…" or "MIG-…". It is
	// the only identity used across the project; indices change with reboots.
	UUID string `json:"uuid"`
	// Index is NVML's index of the device, which orders GPUs for display.
	Index int `json:"index"`
	// Minor is the number of the device node, /dev/nvidia<Minor>.
	Minor int `json:"minor"`
	// Name is the product name, such as "NVIDIA H200".
	Name string `json:"name"`
	// MemoryBytes is the total of the framebuffer as NVML reports it.
	MemoryBytes uint64 `json:"memoryBytes"`
	// Multiprocessors is the number of SMs.
	Multiprocessors int `json:"multiprocessors"`
	// PCIBusID is NVML's bus id, such as "00000000:3B:00.0".
	PCIBusID string `json:"pciBusID"`
	// Healthy is false when the GPU must not be given to new containers.
	Healthy bool `json:"healthy"`
	// Reason says why an unhealthy GPU is so, in one line.
	Reason string `json:"reason,omitempty"`
	// RecoveryKnown: the driver tells whether the GPU needs a reset or a
	// reboot, and Healthy says that too. Older drivers do not tell.
	RecoveryKnown bool `json:"-"`
}

// SPDX-License-Identifier: Apache-2.0

// Package agentapi defines the questions that programs ask the agent over its sockets, the answers,
// and the client. The kernel identifies the asker, and the answer depends on the asker. A question
// does not change any state.
package agentapi

import (
	"fmt"
	"strconv"
)

// Question is the number of a question.
type Question uint16

// These constants are the questions. Messages contain the numbers of questions, so the numbers
// never change.
const (
	// Ping requests the agent's identity: a Pong.
	Ping Question = 1
	// Processes requests the processes that use GPUs: a list of Process.
	Processes Question = 2
	// Devices requests GPUs: a list of Device.
	Devices Question = 3
	// All requests an Overview: all data, read at one moment.
	All Question = 4
)

// Pong is the answer to Ping.
type Pong struct {
	Node string `json:"node"`
	// Version is the agent's version.
	Version string `json:"version"`
}

// Process is one process on one GPU.
type Process struct {
	// Namespace, Pod and Container are empty for processes outside of pods.
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	Node      string `json:"node"`
	// UUID is the GPU's UUID.
	UUID string `json:"uuid"`
	// PID is the process's pid in its container; on the node, the node's pid.
	PID     uint32 `json:"pid"`
	Command string `json:"command"`
	// Type names the kinds of API through which the process uses the GPU, in the form of
	// nvidia-smi. The values are "C" (compute), "G" (graphics) and "C+G"; "V" stands for video
	// engines.
	Type string `json:"type,omitempty"`
	// Utilisation is the process's part of the GPU's time within the last second, in percent, as
	// the driver measures it. Utilisation is nil if the driver reports no value.
	Utilisation *float64 `json:"utilisation,omitempty"`
	// ShareUtilisation is the process's GPU time within the last second, in percent of the
	// container's part of the GPU's time.
	ShareUtilisation *float64 `json:"shareUtilisation,omitempty"`
	// MemoryUsedBytes is the memory that the process holds, as the driver reports it; nil if the
	// driver reports no amount.
	MemoryUsedBytes *uint64 `json:"memoryUsedBytes,omitempty"`
	// MemoryLimitBytes is the container's limit, 0 for no limit.
	MemoryLimitBytes uint64 `json:"memoryLimitBytes,omitempty"`
	// ComputeLimitPPM is the container's part of the GPU's time, 0 for all. ComputeMaximumPPM is as in a
	// Share.
	ComputeLimitPPM   uint32 `json:"computeLimitPPM,omitempty"`
	ComputeMaximumPPM uint32 `json:"computeMaximumPPM,omitempty"`
	// Requests contains the requested amounts of the container, by resource.
	Requests map[string]int64 `json:"requests,omitempty"`
}

// Device is a GPU: in a container the container's part of the GPU, on the node the whole GPU.
type Device struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	Name  string `json:"name,omitempty"`
	// MIG describes a MIG device, and is zero for a physical GPU.
	MIG MIG `json:"mig,omitzero"`
	// Unhealthy is the reason why the GPU gets no new containers.
	Unhealthy string `json:"unhealthy,omitempty"`
	// MemoryBytes is the container's limit, on the node the GPU's memory.
	MemoryBytes uint64 `json:"memoryBytes"`
	// MemoryUsedBytes is the memory that the container's processes hold, on the node the memory
	// that all processes hold; nil if the driver reports no amount.
	MemoryUsedBytes *uint64 `json:"memoryUsedBytes,omitempty"`
	// Utilisation is the part of the GPU's time that the container's processes used within the last
	// second, in percent; on the node, the part that all processes used.
	Utilisation *float64 `json:"utilisation,omitempty"`
	// Sharing lists the GPU's shares; empty if no resource offers shares of the GPU.
	Sharing []Sharing `json:"sharing,omitempty"`
}

// Number returns the GPU's number: "0", and "0:1" for the MIG device 1 of GPU 0.
func (d Device) Number() string { return number(d.Index, d.MIG) }

// MIG describes a MIG device.
type MIG struct {
	// Parent is the UUID of the physical GPU, and Index the device's index on the physical GPU.
	Parent string `json:"parent"`
	Index  int    `json:"index"`
	// Profile is the size of the device, such as "1g.10gb".
	Profile string `json:"profile"`
}

func number(index int, mig MIG) string {
	if mig == (MIG{}) {
		return strconv.Itoa(index)
	}
	return fmt.Sprintf("%d:%d", index, mig.Index)
}

// Sharing is a GPU divided into shares under one name.
type Sharing struct {
	Resource string `json:"resource"`
	// PerGPU is the number of shares of the GPU.
	PerGPU int `json:"perGPU"`
	// ShareBytes is the memory of one share.
	ShareBytes uint64 `json:"shareBytes"`
	// Held is the number of shares that the asking container holds, or that all containers of the
	// node hold if the node's root asks. Shares of every dialect count; the sum is rounded up.
	Held int `json:"held"`
}

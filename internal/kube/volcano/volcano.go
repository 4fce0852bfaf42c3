// SPDX-License-Identifier: Apache-2.0

// Package volcano implements the protocol between Volcano's scheduler and a node, which uses
// annotations. The node lists its GPUs and reports that it is alive. The scheduler writes the GPUs
// that it chose for a pod, and the node confirms the allocation. The package has no side effects.
package volcano

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// These are annotations of a Node.
const (
	// Register lists the node's GPUs.
	Register = "volcano.sh/node-vgpu-register"
	// Handshake is the annotation by which schedulers up to 1.13, 1.14.2 and 1.15.0 ask whether the
	// node's software is alive. Schedulers do not count the GPUs of a node that has not answered.
	Handshake = "volcano.sh/node-vgpu-handshake"
	// Lock is the annotation that a scheduler with NodeLockEnable writes at an assignment. The
	// annotation stays until the node has answered, and its value is a time.
	Lock = "hamivgpu"
)

// These are annotations of a pod.
const (
	Node     = "volcano.sh/vgpu-node"
	Time     = "volcano.sh/vgpu-time"
	BindTime = "volcano.sh/bind-time"
	Phase    = "volcano.sh/bind-phase"
	// IDs is the assignment, which the pod keeps until it is deleted.
	IDs = "volcano.sh/vgpu-ids-new"
	// Group is an annotation that Volcano's controllers set on every pod that Volcano manages.
	Group = "scheduling.k8s.io/group-name"
	// ToAllocate is the assignment without the entries that the node has acknowledged.
	ToAllocate = "volcano.sh/devices-to-allocate"
)

// Reads reports whether this package reads an annotation of a pod.
func Reads(annotation string) bool {
	return slices.Contains([]string{Node, Time, BindTime, Phase, IDs, Group, ToAllocate}, annotation)
}

// These are the values of Phase.
const (
	Allocating = "allocating"
	Success    = "success"
	Failed     = "failed"
)

// Answered is the value of Time on a pod that the node has answered for.
const Answered = "18446744073709551615"

// These are modes of a GPU. HAMiCore is the mode of a node that limits its containers by a
// library, and the mode that Registered writes. Schedulers do not support MPS. In the mode MIG, a
// scheduler would choose MIG devices that the node must then create.
const (
	HAMiCore = "hami-core"
	MPS      = "mps"
	MIG      = "mig"
)

// deviceType is the type of an NVIDIA GPU in assignments.
const deviceType = "NVIDIA"

// Device is one GPU in an assignment.
type Device struct {
	UUID  string
	Type  string
	MiB   uint64
	Cores uint32 // percent
}

// Assignment contains the GPUs of each container that requests GPUs, in the order of the pod's
// spec.
type Assignment [][]Device

// String returns the assignment in the form of the annotations: a colon follows each device, and
// semicolons separate containers.
func (a Assignment) String() string {
	containers := make([]string, len(a))
	for i, devices := range a {
		var b strings.Builder
		for _, d := range devices {
			fmt.Fprintf(&b, "%s,%s,%d,%d:", d.UUID, d.Type, d.MiB, d.Cores)
		}
		containers[i] = b.String()
	}
	return strings.Join(containers, ";")
}

// Parse parses an annotation. Unlike the scheduler, Parse rejects malformed entries.
func Parse(text string) (Assignment, error) {
	var a Assignment
	for container := range strings.SplitSeq(text, ";") {
		var devices []Device
		for container != "" {
			one, rest, ended := strings.Cut(container, ":")
			if !ended {
				return nil, fmt.Errorf("assignment %q: %q does not end with a colon", text, one)
			}
			d, err := parseDevice(one)
			if err != nil {
				return nil, fmt.Errorf("assignment %q: %w", text, err)
			}
			devices = append(devices, d)
			container = rest
		}
		a = append(a, devices)
	}
	return a, nil
}

func parseDevice(text string) (Device, error) {
	fields := strings.Split(text, ",")
	if len(fields) != 4 {
		return Device{}, fmt.Errorf("%q is not UUID,type,MiB,percent", text)
	}
	d := Device{UUID: fields[0], Type: fields[1]}
	var err error
	if d.MiB, err = strconv.ParseUint(fields[2], 10, 32); err != nil {
		return Device{}, fmt.Errorf("%q: MiB: %w", text, err)
	}
	cores, err := strconv.ParseUint(fields[3], 10, 32)
	if err != nil {
		return Device{}, fmt.Errorf("%q: percent: %w", text, err)
	}
	d.Cores = uint32(cores)
	if d.UUID == "" {
		return Device{}, errors.New("a GPU without a UUID")
	}
	return d, nil
}

// Registered returns the value of Register: UUID, slots, MiB, type, health and mode of each GPU,
// with a colon after each GPU. The scheduler ignores the health, so Registered lists an unhealthy
// GPU with 0 slots.
func Registered(gpus []gpu.GPU, cfg config.Config) string {
	var b strings.Builder
	for _, g := range gpus {
		slots := min(cfg.Dialects.Volcano.NumberPerGPU, cfg.Node.SlotsPerGPU)
		if mps := cfg.Sharing.MPS; cfg.Sharing.ByMPS(g.UUID) {
			slots = min(slots, mps.ClientsPerGPU/max(mps.ClientsPerContainer, 1))
		}
		if !g.Healthy {
			slots = 0
		}
		fmt.Fprintf(&b, "%s,%d,%d,%s,%t,%s:", g.UUID, slots, usableMiB(g, cfg), TypeOf(g), g.Healthy, HAMiCore)
	}
	return b.String()
}

func usableMiB(g gpu.GPU, cfg config.Config) uint64 { return request.Usable(g, cfg) / request.MiB }

// TypeOf returns a GPU's name in the form that the scheduler uses. A comma or a colon in the name would
// end the field.
func TypeOf(g gpu.GPU) string {
	return deviceType + "-" + strings.NewReplacer(",", " ", ":", " ").Replace(g.Name)
}

// Reported returns the value of Handshake by which a node reports that it is alive.
func Reported(now time.Time) string { return reported + now.UTC().Format(time.DateTime) }

const reported = "Reported "

// Asks reports whether a Handshake needs an answer. The scheduler expects an answer if it asks, has
// dropped the node, or has not seen the node yet.
func Asks(handshake string) bool { return !strings.HasPrefix(handshake, reported) }

// Package volcano is what Volcano's scheduler and a node tell each other by
// annotations: the node its GPUs and that it lives, the scheduler which GPUs it
// has chosen for a pod, the node that the pod has them. It is pure but for the
// Answerer, which writes the answers.
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

// Annotations of a Node.
const (
	// Register lists the node's GPUs.
	Register = "volcano.sh/node-vgpu-register"
	// Handshake is where schedulers up to 1.13, 1.14.2 and 1.15.0 ask whether
	// the node's software lives. Without it they do not count the node's GPUs.
	Handshake = "volcano.sh/node-vgpu-handshake"
	// Lock is set by a scheduler that is configured so (NodeLockEnable), from an
	// assignment until the node has answered; its value is a time.
	Lock = "hamivgpu"
)

// Annotations of a pod. The scheduler writes all but the wishes.
const (
	Node     = "volcano.sh/vgpu-node"
	Time     = "volcano.sh/vgpu-time"
	BindTime = "volcano.sh/bind-time"
	Phase    = "volcano.sh/bind-phase"
	// IDs is the assignment; it stays as long as the pod.
	IDs = "volcano.sh/vgpu-ids-new"
	// Group is on every pod that Volcano has to do with; it is its controllers'.
	Group = "scheduling.k8s.io/group-name"
	// ToAllocate is the same, less what the node has acknowledged.
	ToAllocate = "volcano.sh/devices-to-allocate"
)

// Wishes, which users write on pods. Lists are separated by commas.
const (
	UseType   = "nvidia.com/use-gputype"
	NoUseType = "nvidia.com/nouse-gputype"
	UseUUID   = "volcano.sh/vgpu-use-gpuuuid"
	NoUseUUID = "volcano.sh/vgpu-nouse-gpuuuid"
	Mode      = "volcano.sh/vgpu-mode"
)

// Reads reports whether an annotation of a pod is read here.
func Reads(annotation string) bool {
	return slices.Contains([]string{Node, Time, BindTime, Phase, IDs, Group, ToAllocate}, annotation) || slices.Contains(wishes, annotation)
}

// Values of Phase.
const (
	Allocating = "allocating"
	Success    = "success"
	Failed     = "failed"
)

// Answered is the Time of a pod that the node has answered for.
const Answered = "18446744073709551615"

// Modes: HAMiCore is that of a node that limits its containers by a library, as
// ours does, and the one that is registered. Schedulers know no MPS.
const (
	HAMiCore = "hami-core"
	MPS      = "mps"
)

// deviceType is how assignments call an NVIDIA GPU.
const deviceType = "NVIDIA"

// A Device is one GPU in an assignment.
type Device struct {
	UUID  string
	Type  string
	MiB   uint64
	Cores uint32 // percent
}

// An Assignment is, for each container that asks, its GPUs, in the order of the
// pod's spec.
type Assignment [][]Device

// String is the assignment as annotations have it: a colon behind each device,
// semicolons between containers.
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

// Parse reads an annotation. Unlike the scheduler, it takes nothing that it
// would not write again in the same way.
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

// Registered is the value of Register: UUID, slots, MiB, type, health and mode
// of each GPU, a colon behind each. The scheduler passes over the health, so an
// unhealthy GPU has no slots either.
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
		fmt.Fprintf(&b, "%s,%d,%d,%s,%t,%s:", g.UUID, slots, usableMiB(g, cfg), typeOf(g), g.Healthy, HAMiCore)
	}
	return b.String()
}

func usableMiB(g gpu.GPU, cfg config.Config) uint64 { return request.Usable(g, cfg) / request.MiB }

// typeOf is a GPU's name as wishes and the scheduler know it. A comma or a
// colon in it would end the field.
func typeOf(g gpu.GPU) string {
	return deviceType + "-" + strings.NewReplacer(",", " ", ":", " ").Replace(g.Name)
}

// Reported is the value of Handshake by which a node says that it lives.
func Reported(now time.Time) string { return reported + now.UTC().Format(time.DateTime) }

const reported = "Reported "

// Asks tells whether a Handshake wants an answer: the scheduler asks, has given
// the node up, or has not seen it yet.
func Asks(handshake string) bool { return !strings.HasPrefix(handshake, reported) }

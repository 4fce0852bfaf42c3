// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/pkg/request"
)

// InfeasibleError reports that a container's part of a GPU can never have the requested size.
type InfeasibleError struct{ Why string }

// Error returns why the size is infeasible.
func (e *InfeasibleError) Error() string { return e.Why }

func infeasible(format string, args ...any) error {
	return &InfeasibleError{fmt.Sprintf(format, args...)}
}

// ErrNotReady reports that sizes cannot change yet, because the agent does not know all containers.
var ErrNotReady = errors.New("the container runtime has not listed its containers yet")

// InUseError reports that a container uses more memory of a GPU than its smaller part would have.
type InUseError struct {
	UUID       string
	Used, Want uint64 // bytes
}

// Error names the GPU and both amounts.
func (e *InUseError) Error() string {
	return fmt.Sprintf("the container uses %d MiB of GPU %s, and its new limit is %d MiB",
		(e.Used+request.MiB-1)/request.MiB, e.UUID, e.Want/request.MiB)
}

// PlanResize returns a container's allocation with the sizes of other shares. shares has one share for
// each GPU that the container holds, in the order of the container's devices. PlanResize does not
// change the ledger, and does not check whether the GPUs have room. If the shares differ from the
// devices in more than memory and time, or grow beyond a GPU, PlanResize returns an *InfeasibleError.
func (l *Ledger) PlanResize(podUID, container string, shares []request.Share) (Allocation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, _, err := l.planResize(podUID, container, shares)
	return a, err
}

// TryResize is like PlanResize, and returns a *NoRoomError if the GPUs have no room for a part that
// grows.
func (l *Ledger) TryResize(podUID, container string, shares []request.Share) (Allocation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, _, err := l.tryResize(podUID, container, shares)
	return a, err
}

// Resize changes the sizes of a container's parts of the GPUs that it holds, as TryResize describes. If
// Resize returns an error, nothing has changed.
func (l *Ledger) Resize(podUID, container string, shares []request.Share) (Allocation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, after, err := l.tryResize(podUID, container, shares)
	if err != nil {
		return Allocation{}, err
	}
	l.replace(podUID, after)
	return clone(a), nil
}

// SetResized replaces the recorded sizes of a container without a check, and records whether the sizes
// have changed since the container's placement. A container without an allocation stays without one.
func (l *Ledger) SetResized(a Allocation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	after := slices.Clone(l.pods[a.PodUID].containers)
	if i := slices.IndexFunc(after, func(held Allocation) bool { return held.Container == a.Container }); i >= 0 {
		after[i] = clone(a)
		l.replace(a.PodUID, after)
	}
}

// replace replaces the allocations of a pod.
func (l *Ledger) replace(podUID string, after []Allocation) {
	before := l.pods[podUID].containers
	l.hold(podUID, after)
	for _, a := range after {
		if slices.ContainsFunc(a.Devices, func(d Device) bool { return shrank(before, after, d.UUID) }) {
			l.freed()
			return
		}
	}
}

// tryResize implements TryResize, and returns the allocations of the pod after the change.
func (l *Ledger) tryResize(podUID, container string, shares []request.Share) (Allocation, []Allocation, error) {
	a, i, err := l.planResize(podUID, container, shares)
	if err != nil {
		return Allocation{}, nil, err
	}
	before := l.pods[podUID].containers
	after := slices.Clone(before)
	after[i] = a
	for k, d := range a.Devices {
		if !l.fitsResized(before, after, d.UUID) {
			return Allocation{}, nil, &NoRoomError{Namespace: a.Namespace, Pod: a.Pod, Container: container, Share: shares[k], GPUs: len(shares), Free: l.free()}
		}
	}
	return a, after, nil
}

// planResize implements PlanResize, and returns the container's index in the pod.
func (l *Ledger) planResize(podUID, container string, shares []request.Share) (Allocation, int, error) {
	containers := l.pods[podUID].containers
	i := slices.IndexFunc(containers, func(a Allocation) bool { return a.Container == container })
	if i < 0 {
		return Allocation{}, 0, infeasible("container %q holds no part of a GPU", container)
	}
	a := clone(containers[i])
	a.MarkResized()
	if len(shares) != len(a.Devices) {
		return Allocation{}, 0, infeasible("container %q holds %d GPUs, and %d shares by its spec: no size applies to a share that spans several GPUs", container, len(a.Devices), len(shares))
	}
	for k := range a.Devices {
		d, err := l.resizedDevice(a.Devices[k], shares[k])
		if err != nil {
			return Allocation{}, 0, err
		}
		a.Devices[k] = d
	}
	return a, i, nil
}

// resizedDevice returns a device with the size of a share.
func (l *Ledger) resizedDevice(held Device, share request.Share) (Device, error) {
	g := slices.IndexFunc(l.cards, func(c card) bool { return c.UUID == held.UUID })
	if g < 0 {
		return Device{}, infeasible("GPU %s is no longer in the node", held.UUID)
	}
	c := &l.cards[g]
	d := c.device(share)
	d.LimitBytes = held.LimitBytes // users change annotations without the right to resize
	switch {
	case held.MPS || d.MPS:
		return Device{}, infeasible("GPU %s is shared through MPS, which sets a process's limits at its start", c.Number())
	case held.Exclusive || d.Exclusive:
		return Device{}, infeasible("GPU %s is held exclusively", c.Number())
	case d.MemoryBytes != held.MemoryBytes && held.LimitBytes != 0:
		return Device{}, infeasible("its memory limit on GPU %s exceeds its request: remove the annotation that raises the limit, and recreate the pod", c.Number())
	case held.MemoryInCommon || d.MemoryInCommon:
		return Device{}, infeasible("the containers of GPU %s share its memory", c.Number())
	case d.Slots != held.Slots:
		return Device{}, infeasible("the number of slots may not change")
	case d.MemoryBytes > max(c.usable, held.MemoryBytes):
		return Device{}, infeasible("GPU %s has %d MiB", c.Number(), c.usable/request.MiB)
	}
	return d, nil
}

// shrank reports whether a pod's load on a GPU is smaller after a change.
func shrank(before, after []Allocation, uuid string) bool {
	was, is := newColumn(before, uuid), newColumn(after, uuid)
	old, now := was.load(), is.load()
	return now.memory < old.memory || now.compute < old.compute
}

// fitsResized reports whether a GPU has room for a pod's load after a change. A load may exceed the
// GPU in what does not grow, as after a change of the configuration.
func (l *Ledger) fitsResized(before, after []Allocation, uuid string) bool {
	g := slices.IndexFunc(l.cards, func(c card) bool { return c.UUID == uuid })
	was, is := newColumn(before, uuid), newColumn(after, uuid)
	old, now := was.load(), is.load()
	all := l.taken[uuid].minus(old).beside(now)
	c := &l.cards[g]
	grows := now.memory > old.memory || now.compute > old.compute
	return !grows || c.Healthy &&
		(now.memory <= old.memory || all.memoryOf(c.usable) <= c.usable) &&
		(now.compute <= old.compute || all.compute <= request.Whole)
}

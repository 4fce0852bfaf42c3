// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"os/exec"
	"testing"
)

// arrives registers processes of a container, and does not settle them.
func (h *house) arrives(n int, container string) []*exec.Cmd {
	h.Helper()
	children := make([]*exec.Cmd, 0, n)
	for i := range n {
		child := exec.Command("sleep", "60")
		if err := child.Start(); err != nil {
			h.Fatal(err)
		}
		h.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
		h.contain(child.Process.Pid, container)
		h.arriveAgain(child, uint32(i))
		children = append(children, child)
	}
	return children
}

func (h *house) arriveAgain(child *exec.Cmd, slot uint32) {
	h.Helper()
	_, handle, err := h.Proc.Pin(child.Process.Pid)
	if err != nil {
		h.Fatal(err)
	}
	h.Registry.arrive(arrival{h.Proc, child.Process.Pid, handle, Claim{Slot: slot}})
}

func TestArrivalsAreLookedAtWhenSomebodyAsks(t *testing.T) {
	for name, ask := range map[string]func(*Registry) int{
		"their list":   func(r *Registry) int { return len(r.Processes(id)) },
		"their number": func(r *Registry) int { return r.counts()[id] },
		"a sweep":      func(r *Registry) int { r.Sweep(); return len(r.processes) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.arrives(2, id)
			if n := len(h.Registry.processes); n != 0 {
				t.Errorf("%d were looked at before", n)
			}
			if n := ask(h.Registry); n != 2 {
				t.Errorf("got %d, want 2", n)
			}
		})
	}
	h := newHouse(t)
	child := h.arrives(1, id)[0]
	process, err := h.Proc.Look(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	if !h.Registry.Has(process) {
		t.Error("it is not known by name")
	}
}

// TestArrivalsAreBounded checks that the number of unsettled arrivals is bounded, because arrivals
// hold descriptors.
func TestArrivalsAreBounded(t *testing.T) {
	h := newHouse(t)
	h.Registry.perContainer = 2 * maxArrivals
	h.arrives(maxArrivals-1, id)
	if n := len(h.Registry.processes); n != 0 {
		t.Errorf("%d were looked at", n)
	}
	h.arrives(1, id)
	if n, left := len(h.Registry.processes), len(h.Registry.arrivals); n != maxArrivals || left != 0 {
		t.Errorf("%d are known, and %d were not looked at", n, left)
	}
}

func TestArrivalsThatComeAgainOrEnd(t *testing.T) {
	h := newHouse(t)
	children := h.arrives(2, id)
	h.arriveAgain(children[0], 9)
	if got := h.outcome(Known); got != 1 {
		t.Errorf("%d came again, want 1", got)
	}
	_ = children[1].Process.Kill()
	_ = children[1].Wait()
	entries := h.Registry.Processes(id)
	if len(entries) != 1 || entries[0].PID != children[0].Process.Pid || entries[0].Claim.Slot != 9 {
		t.Errorf("known are %v, want %d with its later claim", entries, children[0].Process.Pid)
	}
	if got := h.outcome(Gone); got != 1 {
		t.Errorf("%d had ended, want 1", got)
	}
}

// TestArrivalsTakeThePlacesOfTheEnded checks that a container's ended processes take no places from
// later processes.
func TestArrivalsTakeThePlacesOfTheEnded(t *testing.T) {
	h := newHouse(t)
	h.Registry.perContainer = 2
	for _, child := range h.arrives(2, id) {
		h.Registry.settle()
		_ = child.Process.Kill()
		_ = child.Wait()
	}
	h.arrives(2, id)
	h.Registry.Sweep()
	if got := h.outcome(Full); got != 0 || len(h.Registry.Processes(id)) != 2 {
		t.Errorf("%d were refused, known are %v", got, h.Registry.Processes(id))
	}
}

func TestALaterClaimIsNotReplacedByAnEarlierOne(t *testing.T) {
	h := newHouse(t)
	child := h.arrives(1, id)[0]
	process, handle, err := h.Proc.Pin(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	h.Registry.add(process, handle, &Claim{Slot: 7})
	if entries := h.Registry.Processes(id); len(entries) != 1 || entries[0].Claim.Slot != 7 {
		t.Errorf("known are %v", entries)
	}
}

// TestAskingSettlesArrivals checks that the server reads a process that registers and then asks
// once, and then counts the process as a listed process.
func TestAskingSettlesArrivals(t *testing.T) {
	h := newHouse(t)
	child := h.arrives(1, id)[0]
	_, handle, err := h.Proc.Pin(child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	who := caller{Process: Process{PID: child.Process.Pid}, handle: handle}
	if err := h.look(&who); err != nil || !who.known || who.Container != id {
		t.Errorf("got %+v, %v", who, err)
	}
	if got := h.outcome(Registered); got != 1 {
		t.Errorf("%d are registered, want 1", got)
	}
}

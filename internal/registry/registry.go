// SPDX-License-Identifier: Apache-2.0

// Package registry records the processes that use CUDA in the node's containers. Each process
// registers once, at its first cuInit, by a connection to the agent's socket. The kernel identifies
// the process and its cgroup, and the message contains only a claim. No limit of a container
// depends on the registry.
package registry

import (
	"cmp"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// These bounds prevent a container from exhausting the agent's memory or file descriptors. A
// process costs some 300 bytes and a descriptor.
const (
	maxPerContainer = 256
	maxProcesses    = 4096
)

// Outcome is the result of a registration.
type Outcome string

// These are the outcomes, which are values of a metric's label.
const (
	Registered Outcome = "registered" // the process is now listed
	Known      Outcome = "known"      // the process was already listed
	Foreign    Outcome = "foreign"    // the process runs in no container of a pod
	Full       Outcome = "full"       // the process's container, or the registry, is full
	Gone       Outcome = "gone"       // the process ended before the agent read it
	Busy       Outcome = "busy"       // the container, or the agent, has too many open connections
)

// With Gone and Busy, these are the outcomes of questions about the memory that a process holds.
const (
	Answered   Outcome = "answered"
	Unanswered Outcome = "unanswered" // the driver did not answer in time
)

// Entry is a process that has registered.
type Entry struct {
	Process
	// Claim is the process's report about itself; nil before the report arrived.
	Claim *Claim
}

// Slot returns the process's slot on the container's usage page, if the process claims a slot and
// the kernel does not contradict the claim.
func (e Entry) Slot() (slot uint32, ok bool) {
	if e.Claim == nil || e.Claim.InnerPID != e.InnerPID {
		return 0, false
	}
	return e.Claim.Slot, true
}

// Registry is the list of processes. Registry is safe for concurrent use.
type Registry struct {
	settling            sync.Mutex // must be locked before mu
	mu                  sync.Mutex
	arrivals            map[int]arrival     // by PID
	processes           map[int]*registered // by PID
	containers          map[string]int      // number of processes by runtime id
	perContainer, total int
	mostArrivals        int // bounds the arrivals that are not settled
	outcomes            map[Outcome]uint64
	held                map[Outcome]uint64 // of questions about the memory that a process holds
	invalid             uint64
}

type registered struct {
	Entry
	handle Handle
}

// New returns an empty registry.
func New() *Registry { return newRegistry(descriptors()) }

func newRegistry(descriptors int) *Registry {
	return &Registry{
		arrivals: map[int]arrival{}, processes: map[int]*registered{}, containers: map[string]int{},
		perContainer: maxPerContainer, total: min(maxProcesses, descriptors/4),
		mostArrivals: min(maxArrivals, descriptors/16),
		outcomes:     map[Outcome]uint64{}, held: map[Outcome]uint64{},
	}
}

// descriptors returns the number of descriptors that this process may open.
func descriptors() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(limit.Cur, 1<<20))
}

// known returns the listed process with this pid. If the process has ended, known removes it from
// the list. known ignores arrivals that are not settled.
func (r *Registry) known(pid int) (Process, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.processes[pid]
	if !ok {
		return Process{}, false
	}
	if known.handle.Ended() {
		r.remove(known)
		return Process{}, false
	}
	return known.Process, true
}

// add lists a process and takes ownership of its handle. add records the claim, which may be nil,
// unless the process has made a later claim.
func (r *Registry) add(process Process, handle Handle, claim *Claim) Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	outcome := r.admit(process)
	switch outcome {
	case Registered:
		r.processes[process.PID] = &registered{Entry{process, claim}, handle}
		r.containers[process.Container]++
		return outcome
	case Known:
		known := r.processes[process.PID]
		known.Claim = cmp.Or(known.Claim, claim)
	case Foreign, Full, Gone, Busy, Answered, Unanswered: // add keeps nothing
	}
	handle.Close()
	return outcome
}

func (r *Registry) admit(process Process) Outcome {
	if known, ok := r.processes[process.PID]; ok {
		if known.Started == process.Started {
			return Known
		}
		r.remove(known)
	}
	switch {
	case process.Container == "":
		return Foreign
	case r.containers[process.Container] >= r.perContainer, len(r.processes) >= r.total:
		return Full
	default:
		return Registered
	}
}

func (r *Registry) remove(known *registered) {
	known.handle.Close()
	delete(r.processes, known.PID)
	if r.containers[known.Container]--; r.containers[known.Container] == 0 {
		delete(r.containers, known.Container)
	}
}

// claim records a process's report about itself. A later claim replaces an earlier claim.
func (r *Registry) claim(pid int, claim Claim) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known, ok := r.processes[pid]; ok {
		known.Claim = &claim
	}
}

// Sweep drops the processes that have ended, and settles all arrivals.
func (r *Registry) Sweep() {
	r.removeEnded() // first, so that no arrival is refused because of ended processes
	r.settle()
}

func (r *Registry) removeEnded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*registered, 0, len(r.processes))
	polled := make([]unix.PollFd, 0, len(r.processes))
	for _, known := range r.processes {
		all = append(all, known)
		polled = append(polled, unix.PollFd{Fd: int32(known.handle.fd), Events: unix.POLLIN})
	}
	if _, err := unix.Poll(polled, 0); err != nil {
		return
	}
	for i, known := range all {
		if polled[i].Revents != 0 {
			r.remove(known)
		}
	}
}

// Has reports whether a process has registered.
func (r *Registry) Has(process Process) bool {
	r.settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.processes[process.PID]
	return ok && known.Started == process.Started
}

// Processes returns the processes of a container, by the container's runtime id, ordered by pid.
// The list may contain a process that ended within the last second.
func (r *Registry) Processes(container string) []Entry {
	r.settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	var entries []Entry
	for _, known := range r.processes {
		if known.Container == container {
			entries = append(entries, known.Entry)
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.PID, b.PID) })
	return entries
}

// counts returns the number of processes of each container.
func (r *Registry) counts() map[string]int {
	r.settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := make(map[string]int, len(r.containers))
	for id, n := range r.containers {
		counts[id] = n
	}
	return counts
}

func (r *Registry) count(outcome Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes[outcome]++
}

func (r *Registry) countHeld(outcome Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[outcome]++
}

func (r *Registry) countInvalid() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.invalid++
}

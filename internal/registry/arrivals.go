// SPDX-License-Identifier: Apache-2.0

package registry

// maxArrivals bounds the arrivals that are not settled. Each arrival holds a descriptor.
const maxArrivals = 256

// arrival is a registration whose process the server has not read from procfs. A read doubles the
// cost of a registration, on the processors on which the process starts. settle reads the process
// when a caller asks, or at the next sweep. Many processes end before the read, which then is
// unnecessary.
type arrival struct {
	proc   Proc
	pid    int
	handle Handle
	claim  Claim
}

// arrive stores a registration and takes ownership of its handle.
func (r *Registry) arrive(a arrival) {
	r.mu.Lock()
	earlier, again := r.arrivals[a.pid]
	r.arrivals[a.pid] = a
	full := len(r.arrivals) >= r.mostArrivals
	r.mu.Unlock()
	if again {
		r.count(earlier.repeated())
	}
	if full {
		r.settle()
	}
}

// repeated drops an arrival after a second arrival with the same pid, and returns the first
// arrival's outcome.
func (a arrival) repeated() Outcome {
	defer a.handle.Close()
	if a.handle.Ended() {
		return Gone
	}
	return Known
}

// settle reads the processes of all arrivals from procfs and lists them. When settle returns, each
// arrival from before the call has an outcome.
func (r *Registry) settle() {
	r.settling.Lock()
	defer r.settling.Unlock()
	r.mu.Lock()
	arrivals := r.arrivals
	r.arrivals = map[int]arrival{}
	r.mu.Unlock()
	for _, a := range arrivals {
		r.count(r.enter(a))
	}
}

// enter reads an arrival's process from procfs and lists it.
func (r *Registry) enter(a arrival) Outcome {
	if a.handle.Ended() {
		a.handle.Close()
		return Gone
	}
	process, handle, err := a.proc.pinned(a.pid, a.handle)
	if err != nil {
		return Gone
	}
	return r.add(process, handle, &a.claim)
}

// settled settles all arrivals if the pid is among them, and returns the listed process with the
// pid.
func (r *Registry) settled(pid int) (Process, bool) {
	r.mu.Lock()
	_, arrived := r.arrivals[pid]
	r.mu.Unlock()
	if !arrived {
		return Process{}, false
	}
	r.settle()
	return r.known(pid)
}

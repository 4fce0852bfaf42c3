// SPDX-License-Identifier: Apache-2.0

package registry

// maxArrivals bounds the arrivals that wait to be settled. Each arrival holds a descriptor.
const maxArrivals = 256

// arrival is a registration whose process has not been read from procfs. Reading doubles the cost
// of a registration, on the processors that the process starts on. The function settle reads the
// process when a caller asks, or at the next sweep. By then, many short-lived processes have ended
// and need no reading.
type arrival struct {
	proc   Proc
	pid    int
	handle Handle
	claim  Claim
}

// arrive stores a registration and takes over its handle.
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

// repeated drops an arrival whose pid has arrived again, and returns the arrival's outcome.
func (a arrival) repeated() Outcome {
	defer a.handle.Close()
	if a.handle.Ended() {
		return Gone
	}
	return Known
}

// settle reads all arrivals from procfs and enters them. On return, each arrival from before the
// call has an outcome.
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

// settled returns the listed process with this pid, after settling if it has arrived.
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

package registry

// maxArrivals bounds those that have registered and were not looked at, each of which
// costs a descriptor.
const maxArrivals = 256

// arrival is a process that has registered and was not looked at: procfs takes as long
// as all else of a registration, on the processors that the process starts on. So it is
// asked later: when somebody wants to know, or at the next sweep, at which many of the
// processes that start by the hundred have ended.
type arrival struct {
	proc   Proc
	pid    int
	handle Handle
	claim  Claim
}

// arrive takes a registration, and its handle.
func (r *Registry) arrive(a arrival) {
	r.mu.Lock()
	earlier, again := r.arrivals[a.pid]
	r.arrivals[a.pid] = a
	full := len(r.arrivals) >= maxArrivals
	r.mu.Unlock()
	if again {
		r.count(earlier.repeated())
	}
	if full {
		r.settle()
	}
}

// repeated drops an arrival whose pid has arrived again, and returns what became of it.
func (a arrival) repeated() Outcome {
	defer a.handle.Close()
	if a.handle.Ended() {
		return Gone
	}
	return Known
}

// settle looks at those that have arrived. When it returns, all that arrived before it
// was called have an outcome.
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

// enter looks at a process and enters it.
func (r *Registry) enter(a arrival) Outcome {
	if a.handle.Ended() {
		a.handle.Close()
		return Gone
	}
	process, handle, err := a.proc.pinned(a.pid, a.handle)
	if err != nil {
		return Gone
	}
	outcome := r.add(process, handle)
	if outcome == Registered || outcome == Known {
		r.claim(a.pid, a.claim)
	}
	return outcome
}

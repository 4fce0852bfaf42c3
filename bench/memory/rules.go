package main

import (
	"fmt"
	"slices"
)

// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY, the only right answer to a request
// beyond the limit.
const outOfMemory = 2

// notFound is CUDA_ERROR_NOT_FOUND, with which fill ends where the driver does not have a
// function of its way.
const notFound = 500

// tolerance is the part of a limit that a library may leave ungranted where NVML
// knows what processes hold.
const tolerance = 0.01

// Fill is what one process of a point took. Sizes are in bytes.
type Fill struct {
	Way     string `json:"way"`
	Threads int    `json:"threads"`
	Rounds  int    `json:"rounds"`      // filled, and but for the last time freed
	Chunk   uint64 `json:"chunk_bytes"` // of the first pieces
	Granted uint64 `json:"granted_bytes"`
	Pieces  uint64 `json:"pieces"`
	// Refused is the smallest size that was refused; 0 if none was, or if
	// pieces have a size of their own.
	Refused  uint64 `json:"smallest_refused_bytes"`
	Refusals uint64 `json:"refusals"`
	// Context tells whether the process had a context at its end.
	Context bool   `json:"context"`
	Error   int    `json:"error"` // the driver's last answer
	Call    string `json:"call,omitempty"`
	Message string `json:"message,omitempty"` // where there was no answer
}

// Point is one measurement: a way alone, or several at once. Sizes are in
// bytes.
type Point struct {
	Profile      string `json:"profile"`
	Way          string `json:"way"`
	Limit        uint64 `json:"limit_bytes"`
	Granted      uint64 `json:"granted_bytes"` // to all processes, contexts aside
	PhysicalPeak uint64 `json:"physical_peak_bytes"`
	Error        int    `json:"error"`
	// RefusedWithinLimit: something was refused that would have fit, and
	// more than the tolerance was left.
	RefusedWithinLimit bool   `json:"refused_within_limit"`
	Context            uint64 `json:"context_bytes"` // of one process
	// Shortfall is what could have been granted and was not, Spare what may be.
	Shortfall uint64 `json:"shortfall_bytes"`
	Spare     uint64 `json:"spare_bytes"`
	// ContextsRefused counts processes that were refused a context although
	// the contexts of all fit, and nobody had more.
	ContextsRefused int `json:"contexts_refused"`
	// PeakExact: the peak was recorded by the judge with each change; else
	// it is the largest of its samples.
	PeakExact bool   `json:"peak_exact"`
	Processes int    `json:"processes"`
	Fills     []Fill `json:"fills,omitempty"` // of several
	Broken    string `json:"broken,omitempty"`
}

// sizes are what a machine's driver gives without a limit: measured first, so
// that nothing that a tested library says is needed. All are in bytes.
type sizes struct {
	context uint64            // of one process
	pieces  map[string]uint64 // of the ways whose pieces have a size of their own
	reach   map[string]uint64 // what one process gets by a way
	vague   bool              // NVML does not know what processes hold
}

// spare is what may be left ungranted: 1 % of the limit or, where NVML does not say
// what processes hold, as much again as their contexts.
func (s sizes) spare(limit uint64, processes int) uint64 {
	if s.vague {
		return uint64(processes) * s.context
	}
	return uint64(float64(limit) * tolerance)
}

// physical is what the judge saw processes hold, in bytes.
type physical struct {
	peak uint64
	end  uint64 // when all had what they got
}

// judge turns what processes report, and what they physically held, into a
// point. The last process filled when the others were done: what it was
// refused tells what was left. While contexts were made, nobody had more. What the
// driver keeps beside what it granted, as it hands memory out in chunks, is held, too.
func judge(way string, limit uint64, saw physical, fills []Fill, native sizes) Point {
	p := Point{
		Way: way, Limit: limit, Context: native.context, PhysicalPeak: saw.peak, Processes: len(fills),
		Spare: native.spare(limit, len(fills)),
	}
	held := uint64(0)
	for _, f := range fills {
		granted := native.granted(f)
		p.Granted += granted
		held += granted
		if f.Context {
			held += native.context
		}
	}
	p.Error = lastError(fills)
	p.Shortfall = native.shortfall(limit, max(held, saw.end), fills[len(fills)-1])
	if uint64(len(fills))*native.context+p.Spare <= limit {
		p.ContextsRefused = withoutContext(fills)
	}
	p.RefusedWithinLimit = p.Shortfall > p.Spare || p.ContextsRefused > 0
	p.Broken = broken(p)
	return p
}

// withoutContext counts processes that did not even get a context.
func withoutContext(fills []Fill) int {
	count := 0
	for _, f := range fills {
		if !f.Context && f.Error == outOfMemory {
			count++
		}
	}
	return count
}

// granted is what a process got: of pieces with a size of their own, what a
// process sees of them is not to be trusted.
func (s sizes) granted(f Fill) uint64 {
	if piece := s.pieces[f.Way]; piece > 0 {
		return f.Pieces * piece
	}
	return f.Granted
}

// shortfall is what could have been held besides, and was refused to the last
// process, or 0: less than what it asked for cannot be had, nor more than its
// way reaches without a limit.
func (s sizes) shortfall(limit, held uint64, last Fill) uint64 {
	smallest := last.Refused
	switch {
	case !last.Context:
		smallest = s.context
	case s.pieces[last.Way] > 0:
		smallest = s.pieces[last.Way]
	case s.reach[last.Way] > 0 && float64(last.Granted) >= (1-tolerance)*float64(s.reach[last.Way]):
		return 0
	}
	if held+smallest > limit {
		return 0
	}
	return limit - held
}

// lastError is the answer at which processes stopped: the first that is wrong,
// else out of memory.
func lastError(fills []Fill) int {
	for _, f := range fills {
		if f.Error != outOfMemory {
			return f.Error
		}
	}
	return outOfMemory
}

// broken says which rule a point breaks, "" if none.
func broken(p Point) string {
	switch {
	case p.PhysicalPeak > p.Limit:
		return fmt.Sprintf("held %d bytes more than the limit", p.PhysicalPeak-p.Limit)
	case p.Error != outOfMemory:
		return fmt.Sprintf("ended with error %d, not %d", p.Error, outOfMemory)
	case p.PhysicalPeak == 0:
		return "the judge saw nothing held"
	case p.ContextsRefused > 0:
		return fmt.Sprintf("refused %d contexts that would have fit", p.ContextsRefused)
	case p.RefusedWithinLimit:
		return fmt.Sprintf("refused what would have fit: %d bytes were left", p.Shortfall)
	}
	return ""
}

// Summary is the worst of all points of one way with one profile.
type Summary struct {
	Way     string `json:"summary"`
	Profile string `json:"profile"`
	Points  int    `json:"points"`
	Broken  int    `json:"broken"`
	// OverLimit is the largest physical peak above a limit, in bytes.
	OverLimit uint64 `json:"worst_over_limit_bytes"`
	// ShortfallPercent is the largest shortfall, as a part of its limit.
	ShortfallPercent   float64 `json:"worst_shortfall_percent"`
	RefusedWithinLimit int     `json:"refused_within_limit"` // points
	Errors             []int   `json:"errors"`               // all that were seen
}

// summarize is a summary for each profile's ways, in the order of their first points.
func summarize(points []Point) []Summary {
	var all []Summary
	for _, p := range points {
		at := slices.IndexFunc(all, func(s Summary) bool { return s.Way == p.Way && s.Profile == p.Profile })
		if at < 0 {
			at = len(all)
			all = append(all, Summary{Way: p.Way, Profile: p.Profile})
		}
		all[at].add(p)
	}
	return all
}

func (s *Summary) add(p Point) {
	s.Points++
	if p.Broken != "" {
		s.Broken++
	}
	if p.PhysicalPeak > p.Limit {
		s.OverLimit = max(s.OverLimit, p.PhysicalPeak-p.Limit)
	}
	s.ShortfallPercent = max(s.ShortfallPercent, 100*float64(p.Shortfall)/float64(p.Limit))
	if p.RefusedWithinLimit {
		s.RefusedWithinLimit++
	}
	if !slices.Contains(s.Errors, p.Error) {
		s.Errors = append(s.Errors, p.Error)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
)

// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY, the only correct error for a request above the
// limit.
const outOfMemory = 2

// notFound is CUDA_ERROR_NOT_FOUND. fill ends with notFound if the driver lacks a function that
// fill needs.
const notFound = 500

// tolerance is the fraction of a limit that a library may leave ungranted if NVML lists
// the memory of processes.
const tolerance = 0.01

// Fill is the result of one process of a point. Sizes are in bytes.
type Fill struct {
	Way     string `json:"way"`
	Threads int    `json:"threads"`
	Rounds  int    `json:"rounds"`      // fills, each freed except the last
	Chunk   uint64 `json:"chunk_bytes"` // of the first pieces
	Granted uint64 `json:"granted_bytes"`
	Pieces  uint64 `json:"pieces"`
	// Refused is the smallest refused size. Refused is 0 if no request was refused, or if
	// the driver chooses the size of pieces.
	Refused  uint64 `json:"smallest_refused_bytes"`
	Refusals uint64 `json:"refusals"`
	// Context reports whether the process had a context at its end.
	Context bool   `json:"context"`
	Error   int    `json:"error"` // the driver's last result
	Call    string `json:"call,omitempty"`
	Message string `json:"message,omitempty"` // set if the process had no result
}

// Point is one measurement of one way, or of several ways at once. Sizes are in bytes.
type Point struct {
	Profile      string `json:"profile"`
	Way          string `json:"way"`
	Limit        uint64 `json:"limit_bytes"`
	Granted      uint64 `json:"granted_bytes"` // to all processes, without contexts
	PhysicalPeak uint64 `json:"physical_peak_bytes"`
	Error        int    `json:"error"`
	// RefusedWithinLimit reports whether a request was refused although the request would have fit,
	// and the rest exceeded the tolerance.
	RefusedWithinLimit bool   `json:"refused_within_limit"`
	Context            uint64 `json:"context_bytes"` // of one process
	// Shortfall is the ungranted memory that would have fit. Spare is the tolerated shortfall.
	Shortfall uint64 `json:"shortfall_bytes"`
	Spare     uint64 `json:"spare_bytes"`
	// ContextsRefused counts processes whose context was refused while no process held other
	// memory, although the contexts of all processes fit.
	ContextsRefused int `json:"contexts_refused"`
	// PeakExact reports whether the judge recorded the peak at each change. If PeakExact is false,
	// the peak is the largest sample.
	PeakExact bool   `json:"peak_exact"`
	Processes int    `json:"processes"`
	Fills     []Fill `json:"fills,omitempty"` // only of several processes
	Broken    string `json:"broken,omitempty"`
}

// sizes are the sizes that a machine's driver allocates without a limit. The runner measures these
// sizes first, so that the rules need no report of a tested library. All sizes are in bytes.
type sizes struct {
	context uint64            // of one process
	pieces  map[string]uint64 // of the ways whose pieces have a size that the driver chooses
	reach   map[string]uint64 // the most memory that one process can allocate by a way
	vague   bool              // NVML does not list the memory of processes
}

// spare returns the amount that may remain ungranted: 1 % of the limit. If NVML does not list the
// memory of processes, the amount is the total size of the processes' contexts.
func (s sizes) spare(limit uint64, processes int) uint64 {
	if s.vague {
		return uint64(processes) * s.context
	}
	return uint64(float64(limit) * tolerance)
}

// physical is the memory that processes held according to the judge, in bytes.
type physical struct {
	peak uint64
	end  uint64 // after all processes had filled
}

// judge computes a point from the reports of processes and the memory that the processes physically
// held. The refusals of the last process show the rest of the limit, because the last process
// filled after the other processes. While contexts were made, no process held other memory. Memory
// that the driver reserves in chunks beyond the granted size counts as held.
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

// withoutContext counts the processes whose context was refused.
func withoutContext(fills []Fill) int {
	count := 0
	for _, f := range fills {
		if !f.Context && f.Error == outOfMemory {
			count++
		}
	}
	return count
}

// granted returns the memory granted to a process. If the driver chooses the size of pieces,
// granted does not use the size that the process reports.
func (s sizes) granted(f Fill) uint64 {
	if piece := s.pieces[f.Way]; piece > 0 {
		return f.Pieces * piece
	}
	return f.Granted
}

// shortfall returns the memory that would have fit and that the library refused to the last
// process, or 0. A rest below the smallest refused size does not count. Memory that the way cannot
// reach without a limit does not count either.
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

// lastError returns the error at which processes stopped: the first unexpected error, or
// CUDA_ERROR_OUT_OF_MEMORY.
func lastError(fills []Fill) int {
	for _, f := range fills {
		if f.Error != outOfMemory {
			return f.Error
		}
	}
	return outOfMemory
}

// broken returns the rule that a point breaks, or "" if the point breaks no rule.
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

// Summary contains the worst values of all points of one way with one profile.
type Summary struct {
	Way     string `json:"summary"`
	Profile string `json:"profile"`
	Points  int    `json:"points"`
	Broken  int    `json:"broken"`
	// OverLimit is the largest physical peak above a limit, in bytes.
	OverLimit uint64 `json:"worst_over_limit_bytes"`
	// ShortfallPercent is the largest shortfall, in percent of the point's limit.
	ShortfallPercent   float64 `json:"worst_shortfall_percent"`
	RefusedWithinLimit int     `json:"refused_within_limit"` // number of points
	Errors             []int   `json:"errors"`               // all errors that occurred
}

// summarize returns a summary for each way of each profile, in the order of the first points.
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

// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"math"
	"sync/atomic"
)

// memo caches the verdicts on one shape of pods. A generation of a NodeInfo identifies a node and
// its pods, so the verdict on a generation never changes. A memo is safe for concurrent use, and
// may drop any verdict.
//
// Filter looks up the verdicts on hundreds of nodes for each pod, and most of these nodes have not
// changed since the last pod. Therefore a lookup reads a single word.
type memo struct {
	// words are indexed by the low bits of the generation. A word contains the generation in its
	// upper bits, and the verdict in its lower bits; 0: no verdict.
	words [memoWords]atomic.Uint64
}

const (
	// memoWords is several times the number of nodes in the largest clusters, so that few nodes'
	// generations share a word.
	memoWords = 1 << 15
	// verdictBits is the number of bits for a verdict: refused, fitting, or valued plus the upper
	// bits of the value as a float32.
	verdictBits = 24
	valueShift  = 11

	refused = 1 // the pod does not fit
	fitting = 2 // the pod fits, and the value is unknown
	valued  = 3
)

func (m *memo) get(generation int64) (verdict, bool) {
	word := m.words[generation%memoWords].Load()
	if word>>verdictBits != uint64(generation) || word == 0 {
		return verdict{}, false
	}
	switch low := word & (1<<verdictBits - 1); low {
	case refused:
		return verdict{}, true
	case fitting:
		return verdict{fits: true}, true
	default:
		value := math.Float32frombits(uint32(low-valued) << valueShift)
		return verdict{fits: true, valued: true, value: float64(value)}, true
	}
}

// put stores a verdict. put rounds the value, which must not be negative, by less than 0.03 %.
func (m *memo) put(generation int64, v verdict) {
	low := uint64(refused)
	switch {
	case v.valued:
		low = valued + uint64(math.Float32bits(float32(v.value))>>valueShift)
	case v.fits:
		low = fitting
	}
	m.words[generation%memoWords].Store(uint64(generation)<<verdictBits | low)
}

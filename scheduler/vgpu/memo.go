// SPDX-License-Identifier: Apache-2.0

package vgpu

import "sync/atomic"

// memo remembers the verdicts on one shape of pods. A generation of a NodeInfo stands for a node and
// its pods, so a verdict on a generation never changes. A memo is safe for concurrent use, and may
// forget any verdict.
//
// Filter asks for a verdict on hundreds of nodes for each pod, and most of these nodes have not
// changed since the last pod. Therefore a lookup reads one word.
type memo struct {
	// words are by the generation's last bits. A word has the generation in its upper bits, and the
	// verdict in the lower bits; 0: none.
	words [memoWords]atomic.Uint64
}

const (
	// memoWords is several times the number of nodes of the largest clusters, so that few of their
	// generations share a word.
	memoWords = 1 << 15
	// verdictBits are the bits for a verdict: 1 for a pod that does not fit, or the score plus 2.
	verdictBits = 8
)

func (m *memo) get(generation int64) (verdict, bool) {
	word := m.words[generation%memoWords].Load()
	if word>>verdictBits != uint64(generation) || word == 0 {
		return verdict{}, false
	}
	low := word & (1<<verdictBits - 1)
	if low == 1 {
		return verdict{}, true
	}
	return verdict{fits: true, score: int64(low) - 2}, true
}

func (m *memo) put(generation int64, v verdict) {
	low := uint64(1)
	if v.fits {
		low = uint64(v.score) + 2
	}
	m.words[generation%memoWords].Store(uint64(generation)<<verdictBits | low)
}

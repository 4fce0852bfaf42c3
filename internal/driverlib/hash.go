// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// gnuHash returns the hash table of DT_GNU_HASH for symbols. gnuHash also returns
// the symbols in the order that the table requires, by bucket. first is the
// number of symbols before the sorted symbols.
func gnuHash(exports []export, first int) ([]byte, []export) {
	const shift = 6 // of the Bloom filter's second bit; any value works
	buckets := uint32(max(1, len(exports)/4))
	words := uint32(1)
	for int(words)*8 < len(exports) { // some eight bits for each symbol
		words *= 2
	}
	ordered := slices.Clone(exports)
	slices.SortStableFunc(ordered, func(a, b export) int {
		return cmp.Compare(hashOf(a.name)%buckets, hashOf(b.name)%buckets)
	})
	bloom := make([]uint64, words)
	starts := make([]uint32, buckets)
	chain := make([]uint32, len(ordered))
	for i, e := range ordered {
		hash := hashOf(e.name)
		bloom[hash/64%words] |= 1<<(hash%64) | 1<<((hash>>shift)%64)
		if starts[hash%buckets] == 0 {
			starts[hash%buckets] = uint32(first + i)
		}
		chain[i] = hash &^ 1
		if i+1 == len(ordered) || hashOf(ordered[i+1].name)%buckets != hash%buckets {
			chain[i] |= 1 // the last of its bucket
		}
	}
	order := binary.LittleEndian
	var table []byte
	for _, word := range []uint32{buckets, uint32(first), words, shift} {
		table = order.AppendUint32(table, word)
	}
	for _, word := range bloom {
		table = order.AppendUint64(table, word)
	}
	for _, word := range append(starts, chain...) {
		table = order.AppendUint32(table, word)
	}
	return table, ordered
}

// hashOf returns the hash of a name in DT_GNU_HASH.
func hashOf(name string) uint32 {
	hash := uint32(5381)
	for i := range len(name) {
		hash = hash*33 + uint32(name[i])
	}
	return hash
}

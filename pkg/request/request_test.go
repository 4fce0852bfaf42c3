// SPDX-License-Identifier: Apache-2.0

package request

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPiece(t *testing.T) {
	half := partOf(500_000)
	half.SplitPPM, half.GPUs = 100_000, []string{"GPU-1"}
	with := func(s Share, change func(*Share)) Share {
		change(&s)
		return s
	}
	tests := []struct {
		name  string
		share Share
		ppm   uint32
		want  Share
	}{
		{"a part", half, 200_000, with(half, func(s *Share) { s.Memory.PPM, s.ComputePPM = 200_000, 200_000 })},
		{"all", half, 500_000, half},
		{"with more memory and a maximum", with(half, func(s *Share) { s.Limit.PPM, s.MaximumPPM = 750_000, Whole }), 200_000,
			with(half, func(s *Share) {
				s.Memory.PPM, s.Limit.PPM, s.ComputePPM, s.MaximumPPM = 200_000, 300_000, 200_000, 400_000
			})},
		{"rounded down", with(half, func(s *Share) { s.Limit.PPM, s.MaximumPPM = 500_001, 500_003 }), 250_000,
			with(half, func(s *Share) {
				s.Memory.PPM, s.Limit.PPM, s.ComputePPM, s.MaximumPPM = 250_000, 250_000, 250_000, 250_001
			})},
		// The ledger restores no device whose maximum is its guarantee.
		{"a maximum that rounds down to the guarantee", with(half, func(s *Share) { s.MaximumPPM = 600_000 }), 3,
			with(half, func(s *Share) { s.Memory.PPM, s.ComputePPM = 3, 3 })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.share.Piece(tt.ppm)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/nri-vgpu/nri-vgpu/test/cluster/components"
)

func TestDownloadsFrom(t *testing.T) {
	for _, test := range []struct {
		binaries, mirror, want string
		fails                  bool
	}{
		{"", "", "", false},
		{"build", "https://mirror.example", "", false},
		{"download", "", components.OfficialBinaries, false},
		{"download", "https://mirror.example", "https://mirror.example", false},
		{"downloads", "", "", true},
	} {
		got, err := downloadsFrom(test.binaries, test.mirror)
		if got != test.want || (err != nil) != test.fails {
			t.Errorf("%q, %q: %q, %v", test.binaries, test.mirror, got, err)
		}
	}
}

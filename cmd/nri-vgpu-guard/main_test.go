// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/version"
)

func TestAnswer(t *testing.T) {
	for _, tt := range []struct {
		args     []string
		answered bool
		want     string
		fails    bool
	}{
		{nil, false, "", false},
		{[]string{"--version"}, true, version.Version + "\n", false},
		{[]string{"--help"}, true, "--version  print the version", false},
		{[]string{"-h"}, true, "The container runtime starts nri-vgpu-guard", false},
		{[]string{"--hepl"}, true, "", true},
	} {
		var out strings.Builder
		answered, err := answer(tt.args, &out)
		if answered != tt.answered || !strings.Contains(out.String(), tt.want) || (err != nil) != tt.fails {
			t.Errorf("%q: answered %t, %q, %v", tt.args, answered, out.String(), err)
		}
	}
}

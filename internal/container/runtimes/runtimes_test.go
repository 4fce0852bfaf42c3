// SPDX-License-Identifier: Apache-2.0

package runtimes

import "testing"

func TestDetect(t *testing.T) {
	tests := []struct {
		name, version, nri string
		cdi, validation    bool
	}{
		{"containerd", "v2.4.2", "v0.12.3", true, true},
		{"containerd", "2.4.2+unknown", "v0.12.3", true, true},
		{"containerd", "v2.2.9", "v0.11.0", true, true},
		{"containerd", "v2.1.0-rc.1", "v0.8.0", true, false},
		{"containerd", "v2.0.14", "v0.8.0", false, false},
		{"containerd", "v1.7.35", "v0.8.0", false, false},
		{"containerd", "v2.4.2", "unknown", true, false},
		{"cri-o", "1.34.0", "v0.10.0", true, true},
		{"cri-o", "v1.33.8", "v0.9.0", false, false},
		{"CRI-O", "1.36.1", "v0.11.0", true, true},
		{"other", "0.1", "v0.10.0", true, true},
		{"other", "9.9", "v0.9.0", false, false},
		{"other", "9.9", "unknown", false, false},
		{"containerd", "devel", "v0.12.3", true, true},
		{"", "", "", false, false},
	}
	for _, tt := range tests {
		got := Detect(tt.name, tt.version, tt.nri)
		if got.CDI != tt.cdi || got.Validation != tt.validation {
			t.Errorf("%s %s with NRI %s: CDI is %v, validation %v", tt.name, tt.version, tt.nri, got.CDI, got.Validation)
		}
	}
}

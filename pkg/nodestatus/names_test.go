// SPDX-License-Identifier: Apache-2.0

package nodestatus

import "testing"

// TestAdvertisedNamesAreOfExtendedResources checks that the patcher takes only extended resources
// from the annotation.
func TestAdvertisedNamesAreOfExtendedResources(t *testing.T) {
	for name, want := range map[string]bool{
		"nri-vgpu.io/vgpu-memory": true, "a/b": true, "kubernetes.io.example/b": true,
		"": false, "/": false, "cpu": false, "a/": false, "/b": false,
		"kubernetes.io/batch": false, "a.kubernetes.io/b": false,
	} {
		if got := parseAdvertised("x," + name + ",y").Has(name); got != want {
			t.Errorf("%q is taken for ours: %t", name, got)
		}
	}
	if got := parseAdvertised("a/b,cpu,c/d"); len(got) != 2 {
		t.Errorf("read are %v", got)
	}
	if got := formatAdvertised(Resources{"c/d": 1, "a/b": 2}); got != "a/b,c/d" {
		t.Errorf("written are %q", got)
	}
}

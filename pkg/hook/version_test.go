// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"path/filepath"
	"testing"
)

// TestGivenIsKnownWithoutPages checks that Given returns the limits of a container whose files are
// lost.
func TestGivenIsKnownWithoutPages(t *testing.T) {
	n := newNode(t)
	n.pod("u", "main=1024")
	mustCreate(t, n, "u")
	dir, err := n.hook.opts.Store.Dir("u", "main")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if given := n.hook.Given(dir); len(given) != 1 || given[0].UUID != gpuA || given[0].MemoryBytes != 1024*mib {
		t.Errorf("it was given %+v", given)
	}
	if given := n.hook.Given(filepath.Join(filepath.Dir(dir), "other")); len(given) != 0 {
		t.Errorf("another was given %+v", given)
	}
}

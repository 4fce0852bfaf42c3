// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// TestGivenIsKnownWithoutPages checks that Given returns the limits of a container whose files are
// lost.
func TestGivenIsKnownWithoutPages(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=1024")
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

// TestAFileOfANewerReleaseStays checks that an agent does not replace the assignment of a running
// container that a newer release wrote. The agent reads the allocation from the runtime.
func TestAFileOfANewerReleaseStays(t *testing.T) {
	n := newNode(t)
	n.run("u", "main=1024")
	dir, err := n.hook.opts.Store.Dir("u", "main")
	if err != nil {
		t.Fatal(err)
	}
	n.stopHook()
	const content = `{"version":99,"sha256":"","gpus":[]}`
	path := filepath.Join(dir, paths.Assignment)
	write(t, path, content)
	n.startHook()
	if given, ok := n.ledger.Get("u", "main"); !ok || given.Devices[0].UUID != gpuA {
		t.Errorf("the container holds %+v", given)
	}
	if kept, err := os.ReadFile(path); err != nil || string(kept) != content {
		t.Errorf("the file has %q: %v", kept, err)
	}
}

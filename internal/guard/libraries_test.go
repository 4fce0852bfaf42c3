// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// TestTheGuardKeepsTheLibrariesOpen checks that no tenant gets a write lease on a library while the agent
// is down.
func TestTheGuardKeepsTheLibrariesOpen(t *testing.T) {
	n := newNode(t)
	library := filepath.Join(n.settings.InstallDir, "1", paths.CUDALibrary)
	if err := errors.Join(os.MkdirAll(filepath.Dir(library), 0o755), os.WriteFile(library, nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	tenant, err := os.Open(library)
	if err != nil {
		t.Fatal(err)
	}
	defer tenant.Close()
	eventually.Holds(t, 30*time.Second, "the kernel grants no lease", func() bool {
		_, err := unix.FcntlInt(tenant.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
		if err == nil {
			_, err = unix.FcntlInt(tenant.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		}
		return errors.Is(err, unix.EAGAIN)
	})
}

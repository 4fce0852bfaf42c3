// SPDX-License-Identifier: Apache-2.0

package guardfile

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

func TestAStatusThatCannotBeReadIsAnError(t *testing.T) {
	dir := t.TempDir()
	if _, loaded, err := Loaded(dir); loaded || err != nil {
		t.Errorf("without one: %t, %v", loaded, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Loaded(filepath.Join(dir, "file")); err == nil {
		t.Error("a directory that is a file is no error")
	}
}

// TestALockedStatusIsOfALoadedGuard checks that a guard counts as loaded as long as the guard locks
// its status.
func TestALockedStatusIsOfALoadedGuard(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(paths.GuardStatus(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(`{"version":"1.2.3","pid":7,"runtime":"containerd"}`); err != nil {
		t.Fatal(err)
	}
	if _, loaded, err := Loaded(dir); loaded || err != nil {
		t.Errorf("without a lock: %t, %v", loaded, err)
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	want := Status{Version: "1.2.3", PID: 7, Runtime: "containerd"}
	if got, loaded, err := Loaded(dir); !loaded || err != nil || got != want {
		t.Errorf("with a lock: %+v, %t, %v", got, loaded, err)
	}
	// The guard may not have written the status yet.
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if got, loaded, err := Loaded(dir); !loaded || err != nil || got != (Status{}) {
		t.Errorf("with an empty status: %+v, %t, %v", got, loaded, err)
	}
}

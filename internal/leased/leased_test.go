// SPDX-License-Identifier: Apache-2.0

package leased

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLeasesDelayNoReader checks that no function waits for the end of a lease. An open that waits
// would take 45 s.
func TestLeasesDelayNoReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := Read(path, 9); !errors.Is(err, fs.ErrNotExist) || HasSize(path, 0) {
		t.Errorf("without a file: %v", err)
	}
	if err := os.WriteFile(path, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	if have, err := Read(path, 4); err != nil || string(have) != "cont" {
		t.Errorf("without a lease: %q, %v", have, err)
	}
	tenant, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer tenant.Close()
	if _, err := unix.FcntlInt(tenant.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if _, err := Open(path, os.O_RDWR); !errors.Is(err, Err) {
		t.Errorf("open: %v", err)
	}
	if _, err := Read(path, 9); !errors.Is(err, Err) {
		t.Errorf("read: %v", err)
	}
	if !HasSize(path, 7) || HasSize(path, 8) {
		t.Error("the size is wrong")
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

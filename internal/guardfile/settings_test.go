// SPDX-License-Identifier: Apache-2.0

package guardfile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-vgpu/nri-vgpu/internal/paths"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

func TestSettingsAreWrittenAndRead(t *testing.T) {
	umask := unix.Umask(0o077)
	defer unix.Umask(umask)
	program := filepath.Join(t.TempDir(), "guard")
	s := SettingsFrom(config.Default())
	s.Retiring = []string{"uid"}
	if err := s.Write(program); err != nil {
		t.Fatal(err)
	}
	path := paths.GuardSettings(program)
	got, err := ReadSettings(path)
	if err != nil || cmp.Diff(s, got) != "" {
		t.Errorf("read back: %v, %s", err, cmp.Diff(s, got))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the rights of the file are %v, %v", info.Mode(), err)
	}
}

func TestSettingsThatCannotBeWrittenAreAnError(t *testing.T) {
	if err := SettingsFrom(config.Default()).Write(filepath.Join(t.TempDir(), "missing", "guard")); err == nil {
		t.Error("a missing directory is no error")
	}
}

// TestSettingsThatCannotBeReadAreAnError checks that a guard does not run with other settings if
// its settings are missing or unreadable.
func TestSettingsThatCannotBeReadAreAnError(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadSettings(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing file is no error")
	}
	corrupt := filepath.Join(dir, "corrupt")
	if err := os.WriteFile(corrupt, []byte(`{"runDir":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSettings(corrupt); err == nil {
		t.Error("a corrupt file is no error")
	}
}

// TestMissingSettingsKeepTheirDefaults checks that a missing marksExempt means false: an agent of a
// release without the field exempts containers without a mark.
func TestMissingSettingsKeepTheirDefaults(t *testing.T) {
	path := filepath.Join(t.TempDir(), "settings")
	if err := os.WriteFile(path, []byte(`{"runDir":"/elsewhere"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	want := SettingsFrom(config.Default())
	want.RunDir, want.MarksExempt = "/elsewhere", false
	got, err := ReadSettings(path)
	if err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("read: %v, %s", err, cmp.Diff(want, got))
	}
}

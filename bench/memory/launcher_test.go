// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOursCommand(t *testing.T) {
	argv, env := ours{"/b/vgpuctl", "/b/lib"}.command(gib, "/run", "/b/fill", []string{"--way", "vmm"})
	want := []string{"/b/vgpuctl", "run", "--memory", "1073741824", "--group", "bench", "--", "/b/fill", "--way", "vmm"}
	if diff := cmp.Diff(want, argv); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"XDG_RUNTIME_DIR=/run", "NRI_VGPU_LIB=/b/lib"}, env); diff != "" {
		t.Error(diff)
	}
}

func TestPreloadedCommand(t *testing.T) {
	library := filepath.Join(t.TempDir(), "other.so")
	if err := os.WriteFile(library, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := newLauncher("/b", t.TempDir(), library, "LIMIT={limit_mib}m  BYTES={limit_bytes} CACHE={run_dir}/cache")
	if err != nil {
		t.Fatal(err)
	}
	argv, env := l.command(37*gib/10, "/run", "/b/fill", []string{"--way", "vmm"})
	if diff := cmp.Diff([]string{"/b/fill", "--way", "vmm"}, argv); diff != "" {
		t.Error(diff)
	}
	want := []string{"LD_PRELOAD=" + library, "LIMIT=3788m", "BYTES=3972844748", "CACHE=/run/cache"}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Error(diff)
	}
}

func TestNewLauncherRefuses(t *testing.T) {
	here, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ library, variables string }{
		{"/nowhere/lib.so", ""},
		{here, "A=b C"},
		{here, "=b"},
		{"", "A=b"},
	} {
		if l, err := newLauncher("/b", t.TempDir(), test.library, test.variables); err == nil {
			t.Errorf("library %q, variables %q: %v", test.library, test.variables, l)
		}
	}
}

func TestWithout(t *testing.T) {
	got := without([]string{"PATH=/bin", "LD_PRELOAD=x", "NRI_VGPU_DIR=y", "CUDA_VISIBLE_DEVICES=", "GPUSIM_STATE=s", "GPUSIM_PROFILE=p", "A=b=c"})
	if diff := cmp.Diff([]string{"PATH=/bin", "A=b=c"}, got); diff != "" {
		t.Error(diff)
	}
}

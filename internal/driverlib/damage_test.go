// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// damage changes some bytes of a library, mostly in its headers and tables, or
// truncates it.
func damage(content []byte, random *rand.Rand) []byte {
	out := slices.Clone(content)
	if random.IntN(4) == 0 {
		return out[:random.IntN(len(out))]
	}
	heads := [][2]int{{0, 0x300}, {0, len(out)}, {len(out) - 0x900, len(out)}}
	for range 1 + random.IntN(6) {
		part := heads[random.IntN(len(heads))]
		at := part[0] + random.IntN(part[1]-part[0])
		out[at] = []byte{0, 1, 0x7f, 0xff, byte(random.IntN(256))}[random.IntN(5)]
	}
	return out
}

func stripped(t testing.TB, content []byte) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "library")
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("strip", path).CombinedOutput(); err != nil {
		t.Fatalf("strip: %v: %s", err, out)
	}
	out, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestDamagedLibraries checks that any damage to a library results in a wrapped error or in a
// variant.
func TestDamagedLibraries(t *testing.T) {
	theirs, err := os.ReadFile(driver(t, cuda, "cuInit", "cuGetProcAddress", "cuMemAlloc_v2", "cuFrob"))
	if err != nil {
		t.Fatal(err)
	}
	ours := stripped(t, interposer(t, cuda))
	random := rand.New(rand.NewPCG(1, 2))
	failures := 0
	for range 1000 {
		exports, err := exportsOf(readerOf(damage(theirs, random)), cuda)
		if err != nil && !errors.Is(err, ErrNotLibrary) && !errors.Is(err, ErrNotDriver) {
			t.Fatalf("driver: %v", err)
		}
		if err != nil {
			failures++
		}
		exports = append(exports, Export{Name: "cuInit"}, Export{Name: "cuFrob"})
		_, _, err = Rewrite(damage(ours, random), exports, cuda)
		if err != nil && !errors.Is(err, ErrNotOurs) && !errors.Is(err, ErrNoRoom) {
			t.Fatalf("ours: %v", err)
		}
	}
	if failures < 150 {
		t.Errorf("%d of 1000 damaged libraries were refused", failures)
	}
}

func FuzzExports(f *testing.F) {
	theirs, err := os.ReadFile(driver(f, cuda, "cuInit", "cuGetProcAddress", "cuMemAlloc_v2", "cuFrob"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(theirs)
	f.Add(theirs[:64])
	f.Fuzz(func(_ *testing.T, content []byte) {
		_, _ = exportsOf(readerOf(content), cuda)
	})
}

func FuzzRewrite(f *testing.F) {
	f.Add(stripped(f, interposer(f, nvml)), "nvmlFrob")
	f.Fuzz(func(_ *testing.T, content []byte, name string) {
		_, _, _ = Rewrite(content, []Export{{Name: "nvmlInit_v2"}, {Name: name}}, nvml)
	})
}

// SPDX-License-Identifier: Apache-2.0

package standin

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nri-vgpu/nri-vgpu/internal/machine"
)

// TestLoadedByName checks that a real loader silently accepts a library of the other class behind a
// library with the same name. TestLoadedByName uses the loader of 64-bit programs, because build
// machines have no other loader. The loader of 64-bit programs treats 32-bit libraries as the
// loader of 32-bit programs treats 64-bit libraries.
func TestLoadedByName(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "libother.so.1")
	write := func(path string, content []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(preload string) string {
		t.Helper()
		command := exec.Command("/bin/true")
		command.Env = []string{"LD_PRELOAD=" + preload}
		out, err := command.CombinedOutput()
		if err != nil {
			t.Errorf("with %s: %v", preload, err)
		}
		return string(out)
	}
	write(path, Library(elf.ELFCLASS32, "libother.so.1"))
	if out := run(path); !strings.Contains(out, "wrong ELF class: ELFCLASS32") {
		t.Fatalf("alone it prints %q", out)
	}
	for _, platform := range machine.Platforms {
		write(filepath.Join(dir, platform, "libother.so.1"), Library(elf.ELFCLASS64, path))
	}
	if out := run(filepath.Join(dir, "$PLATFORM", "libother.so.1") + ":" + path); out != "" {
		t.Errorf("behind a stand-in it prints %q", out)
	}
	if out := run(filepath.Join(dir, "$PLATFORM", "nothing") + ":" + path); strings.Count(out, "ERROR") != 2 {
		t.Errorf("behind nothing it prints %q", out)
	}
}

func TestLibrary(t *testing.T) {
	for class, number := range machineOf {
		const name = "/usr/local/nri-vgpu/lib/libcuda.so.1"
		content := Library(class, name)
		f, err := elf.NewFile(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		if f.Class != class || f.Machine != number || f.Type != elf.ET_DYN || len(f.Progs) != segments {
			t.Errorf("the header is %+v, with %d segments", f.FileHeader, len(f.Progs))
		}
		for _, p := range f.Progs {
			if p.Flags&elf.PF_X != 0 || p.Off+p.Filesz > uint64(len(content)) {
				t.Errorf("a segment is %+v, of %d bytes", p.ProgHeader, len(content))
			}
		}
		if !bytes.HasSuffix(content, []byte("\x00"+name+"\x00")) {
			t.Error("it does not end with its name")
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package standin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
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

// TestLibrary checks a library of each class against the ELF format: the segments, the dynamic section
// and the tables of the dynamic section.
func TestLibrary(t *testing.T) {
	for class, size := range map[elf.Class]sizes{elf.ELFCLASS32: {52, 32, 4, 16}, elf.ELFCLASS64: {64, 56, 8, 24}} {
		const name = "/usr/local/nri-vgpu/lib/libcuda.so.1"
		content := Library(class, name)
		f, err := elf.NewFile(bytes.NewReader(content))
		if err != nil {
			t.Fatal(err)
		}
		want := elf.FileHeader{Class: class, Data: elf.ELFDATA2LSB, Version: elf.EV_CURRENT, ByteOrder: binary.LittleEndian, Type: elf.ET_DYN, Machine: machineOf[class]}
		if f.FileHeader != want || len(f.Progs) != 3 || len(f.Sections) != 0 {
			t.Fatalf("the header is %+v, with %d segments", f.FileHeader, len(f.Progs))
		}
		if sections := content[size.header-6 : size.header]; !bytes.Equal(sections, make([]byte, 6)) {
			t.Errorf("the header describes sections: %x", sections)
		}
		whole, dynamic, stack := f.Progs[0].ProgHeader, f.Progs[1].ProgHeader, f.Progs[2].ProgHeader
		length := uint64(len(content))
		if want := (elf.ProgHeader{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_W, Filesz: length, Memsz: length, Align: 4096}); whole != want {
			t.Errorf("the first segment is %+v, want %+v", whole, want)
		}
		at, seven := size.header+3*size.segment, 7*2*size.word
		if want := (elf.ProgHeader{Type: elf.PT_DYNAMIC, Flags: elf.PF_R | elf.PF_W, Off: at, Vaddr: at, Paddr: at, Filesz: seven, Memsz: seven, Align: size.word}); dynamic != want {
			t.Errorf("the second segment is %+v, want %+v", dynamic, want)
		}
		if want := (elf.ProgHeader{Type: elf.PT_GNU_STACK, Flags: elf.PF_R | elf.PF_W, Align: 16}); stack != want {
			t.Errorf("the third segment is %+v, want %+v", stack, want)
		}
		entries := dynamicOf(t, f)
		names := entries[elf.DT_STRTAB]
		if text := content[names+entries[elf.DT_SONAME]:]; string(text) != name+"\x00" || content[names] != 0 || names+entries[elf.DT_STRSZ] != length {
			t.Errorf("the name is %q, in the names %q", text, content[names:])
		}
		symbols := entries[elf.DT_SYMTAB]
		if null := content[symbols:names]; entries[elf.DT_SYMENT] != size.symbol || !bytes.Equal(null, make([]byte, size.symbol)) {
			t.Errorf("the symbols of %d bytes are %x", entries[elf.DT_SYMENT], null)
		}
		if hash := content[entries[elf.DT_HASH]:symbols]; !bytes.Equal(hash, []byte{1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) {
			t.Errorf("the hash table is %x, want a bucket and a chain without symbols", hash)
		}
	}
}

// dynamicOf returns the entries of a dynamic section.
func dynamicOf(t *testing.T, f *elf.File) map[elf.DynTag]uint64 {
	t.Helper()
	entries := map[elf.DynTag]uint64{}
	section := f.Progs[1].Open()
	for {
		var tag, value uint64
		if f.Class == elf.ELFCLASS64 {
			var entry elf.Dyn64
			if err := binary.Read(section, f.ByteOrder, &entry); err != nil {
				t.Fatal(err)
			}
			tag, value = uint64(entry.Tag), entry.Val
		} else {
			var entry elf.Dyn32
			if err := binary.Read(section, f.ByteOrder, &entry); err != nil {
				t.Fatal(err)
			}
			tag, value = uint64(entry.Tag), uint64(entry.Val)
		}
		if elf.DynTag(tag) == elf.DT_NULL {
			return entries
		}
		entries[elf.DynTag(tag)] = value
	}
}

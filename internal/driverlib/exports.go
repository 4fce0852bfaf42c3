// SPDX-License-Identifier: Apache-2.0

// Package driverlib makes the interposer's libraries export exactly the names that a
// node's driver exports. An additional name would announce a function that the driver
// lacks. If a name is missing, programs that import it do not start.
package driverlib

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/nri-vgpu/nri-vgpu/internal/leased"
	"github.com/nri-vgpu/nri-vgpu/internal/machine"
	"github.com/nri-vgpu/nri-vgpu/internal/paths"
)

// Each error about a library wraps one of these errors.
var (
	// ErrNotLibrary reports that the file is not a shared library of this architecture, or is
	// damaged.
	ErrNotLibrary = errors.New("it is not a usable shared library: install the driver again, or correct driver.root")
	// ErrNotDriver reports that the library lacks names that every driver has.
	ErrNotDriver = errors.New("it is not the driver's library: install the driver again, or correct driver.root")
	// ErrOurs reports that the library is the interposer's.
	ErrOurs = errors.New("it is nri-vgpu's own library: install the driver's library again")
	// ErrNotOurs reports that the library to rewrite is not an unchanged interposer.
	ErrNotOurs = errors.New("it is not nri-vgpu's library as built: install this version of nri-vgpu again")
	// ErrNoRoom reports that the driver has more names than the interposer has room
	// for.
	ErrNoRoom = errors.New("the driver exports more names than nri-vgpu's library has room for: install a newer nri-vgpu")
)

// Kind is a kind of the driver's libraries.
type Kind struct {
	// Name is the library's file name.
	Name string
	// required are names that every driver since CUDA 11.3 exports.
	required []string
	// hooks are names that the interposer exports in addition to the driver's.
	hooks []string
}

// Kinds are the libraries that the interposer replaces.
var Kinds = []Kind{
	{Name: paths.CUDALibrary, required: []string{"cuInit", "cuGetProcAddress", "cuMemAlloc_v2"}, hooks: []string{"dlopen", "dlmopen"}},
	{Name: paths.NVMLLibrary, required: []string{"nvmlInit_v2", "nvmlDeviceGetCount_v2"}},
}

// Export is a name that a driver's library exports.
type Export struct {
	Name string
	// Data reports whether the name is a variable, which no stub can replace.
	Data bool
}

const (
	// maxLibrary is the greatest size of a driver's library, in bytes.
	maxLibrary = 4 << 30
	// maxTable is the greatest size of a table of dynamic symbols, in bytes.
	maxTable = 64 << 20
	noteName = ".note.nri-vgpu"
)

// ReadExports returns the exports of a driver's library, sorted by name.
func ReadExports(path string, kind Kind) ([]Export, error) {
	file, err := leased.Open(path, os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open the driver's library: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the driver's library: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxLibrary {
		return nil, fmt.Errorf("read the driver's library %s: %w (%v, %d bytes)", path, ErrNotLibrary, info.Mode(), info.Size())
	}
	exports, err := exportsOf(file, kind)
	if err != nil {
		return nil, fmt.Errorf("read the driver's library %s: %w", path, err)
	}
	return exports, nil
}

func exportsOf(r io.ReaderAt, kind Kind) ([]Export, error) {
	file, err := openELF(r)
	if err != nil {
		return nil, err
	}
	if file.Section(noteName) != nil {
		return nil, ErrOurs
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("%w (read its dynamic symbols: %w)", ErrNotLibrary, err)
	}
	var exports []Export
	for i := range symbols {
		if isExported(&symbols[i]) {
			exports = append(exports, Export{symbols[i].Name, elf.ST_TYPE(symbols[i].Info) == elf.STT_OBJECT})
		}
	}
	slices.SortFunc(exports, func(a, b Export) int { return cmp.Compare(a.Name, b.Name) })
	exports = slices.CompactFunc(exports, func(a, b Export) bool { return a.Name == b.Name })
	for _, name := range kind.required {
		if !slices.ContainsFunc(exports, func(e Export) bool { return e.Name == name && !e.Data }) {
			return nil, fmt.Errorf("%w (it does not export %s, as every %s does)", ErrNotDriver, name, kind.Name)
		}
	}
	return exports, nil
}

// tables are the types of the sections that ReadExports reads.
var tables = []elf.SectionType{
	elf.SHT_DYNSYM, elf.SHT_STRTAB, elf.SHT_GNU_VERSYM, elf.SHT_GNU_VERNEED, elf.SHT_GNU_VERDEF,
}

// openELF reads the header of a library and checks the assumptions of debug/elf.
func openELF(r io.ReaderAt) (*elf.File, error) {
	file, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNotLibrary, err)
	}
	if file.Class != elf.ELFCLASS64 || file.Data != elf.ELFDATA2LSB || file.Type != elf.ET_DYN || file.Machine != machine.ELF {
		return nil, fmt.Errorf("%w (it is %v %v %v %v)", ErrNotLibrary, file.Class, file.Data, file.Type, file.Machine)
	}
	for _, section := range file.Sections {
		if slices.Contains(tables, section.Type) && (section.Size > maxTable || section.Flags&elf.SHF_COMPRESSED != 0) {
			return nil, fmt.Errorf("%w (its section %s has %d bytes, and flags %v)", ErrNotLibrary, section.Name, section.Size, section.Flags)
		}
	}
	return file, nil
}

// linkers are names that a linker adds to every library.
var linkers = []string{"_init", "_fini", "_edata", "_end", "__bss_start"}

// isExported reports whether programs can look up a symbol by its name.
func isExported(s *elf.Symbol) bool {
	kind, bind := elf.ST_TYPE(s.Info), elf.ST_BIND(s.Info)
	visible := elf.ST_VISIBILITY(s.Other) == elf.STV_DEFAULT || elf.ST_VISIBILITY(s.Other) == elf.STV_PROTECTED
	return s.Name != "" && s.Section != elf.SHN_UNDEF && s.Section < elf.SHN_LORESERVE && visible &&
		(bind == elf.STB_GLOBAL || bind == elf.STB_WEAK) &&
		(kind == elf.STT_FUNC || kind == elf.STT_OBJECT || kind == elf.STT_GNU_IFUNC || kind == elf.STT_NOTYPE) &&
		!slices.Contains(linkers, s.Name) &&
		(!s.HasVersion || !s.VersionIndex.IsHidden())
}

// readerOf returns a reader of content.
func readerOf(content []byte) io.ReaderAt { return bytes.NewReader(content) }

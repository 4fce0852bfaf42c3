// Package driverlib makes the interposer's libraries export the names that a
// node's driver exports: no name more, so that programs find what the driver has,
// and none less, so that programs that import a name start.
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

	"github.com/nri-vgpu/nri-vgpu/pkg/layout"
)

// What can be wrong with a library. Errors wrap one of these.
var (
	// ErrNotLibrary: the file is no shared library of this architecture, or is damaged.
	ErrNotLibrary = errors.New("it is not a usable shared library: install the driver again, or correct driver.root")
	// ErrNotDriver: it lacks names that every driver has.
	ErrNotDriver = errors.New("it is not the driver's library: install the driver again, or correct driver.root")
	// ErrOurs: the library is the interposer's.
	ErrOurs = errors.New("it is nri-vgpu's own library: put the driver's there again")
	// ErrNotOurs: the library to rewrite is not an interposer as it is built.
	ErrNotOurs = errors.New("it is not nri-vgpu's library as it is built: install this version of nri-vgpu again")
	// ErrNoRoom: the driver has more names than the interposer has room for.
	ErrNoRoom = errors.New("the driver exports more names than nri-vgpu's library has room for: install a newer nri-vgpu")
)

// Kind is one of the driver's libraries.
type Kind struct {
	// Name is its file name.
	Name string
	// required are names that every driver since CUDA 11.3 exports.
	required []string
	// hooks are names that the interposer exports beside the driver's.
	hooks []string
}

// Kinds are the libraries that the interposer stands in for.
var Kinds = []Kind{
	{Name: layout.CUDALibrary, required: []string{"cuInit", "cuGetProcAddress", "cuMemAlloc_v2"}, hooks: []string{"dlopen", "dlmopen"}},
	{Name: layout.NVMLLibrary, required: []string{"nvmlInit_v2", "nvmlDeviceGetCount_v2"}},
}

// Export is a name that a driver's library exports.
type Export struct {
	Name string
	// Data: it is a variable, which no stub can stand for.
	Data bool
}

const (
	// maxLibrary bounds what is taken for a library of the driver, in bytes.
	maxLibrary = 4 << 30
	// maxTable bounds a table of dynamic symbols, in bytes.
	maxTable = 64 << 20
	// machine is the one that the interposer is for.
	machine  = elf.EM_X86_64
	noteName = ".note.nri-vgpu"
)

// ReadExports returns what a driver's library exports, sorted by name.
func ReadExports(path string, kind Kind) ([]Export, error) {
	file, err := os.Open(path)
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

// tables are the sections that are read.
var tables = []elf.SectionType{
	elf.SHT_DYNSYM, elf.SHT_STRTAB, elf.SHT_GNU_VERSYM, elf.SHT_GNU_VERNEED, elf.SHT_GNU_VERDEF,
}

// openELF reads the head of a library and checks what debug/elf takes for granted.
func openELF(r io.ReaderAt) (*elf.File, error) {
	file, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNotLibrary, err)
	}
	if file.Class != elf.ELFCLASS64 || file.Data != elf.ELFDATA2LSB || file.Type != elf.ET_DYN || file.Machine != machine {
		return nil, fmt.Errorf("%w (it is %v %v %v %v)", ErrNotLibrary, file.Class, file.Data, file.Type, file.Machine)
	}
	for _, section := range file.Sections {
		if slices.Contains(tables, section.Type) && (section.Size > maxTable || section.Flags&elf.SHF_COMPRESSED != 0) {
			return nil, fmt.Errorf("%w (its section %s has %d bytes, and flags %v)", ErrNotLibrary, section.Name, section.Size, section.Flags)
		}
	}
	return file, nil
}

// linkers are names that a linker gives to every library.
var linkers = []string{"_init", "_fini", "_edata", "_end", "__bss_start"}

// isExported reports whether programs find a symbol by its name.
func isExported(s *elf.Symbol) bool {
	kind, bind := elf.ST_TYPE(s.Info), elf.ST_BIND(s.Info)
	visible := elf.ST_VISIBILITY(s.Other) == elf.STV_DEFAULT || elf.ST_VISIBILITY(s.Other) == elf.STV_PROTECTED
	return s.Name != "" && s.Section != elf.SHN_UNDEF && s.Section < elf.SHN_LORESERVE && visible &&
		(bind == elf.STB_GLOBAL || bind == elf.STB_WEAK) &&
		(kind == elf.STT_FUNC || kind == elf.STT_OBJECT || kind == elf.STT_GNU_IFUNC || kind == elf.STT_NOTYPE) &&
		!slices.Contains(linkers, s.Name) &&
		(!s.HasVersion || !s.VersionIndex.IsHidden())
}

// readerOf makes content readable as a file is.
func readerOf(content []byte) io.ReaderAt { return bytes.NewReader(content) }

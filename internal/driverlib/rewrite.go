// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/interposer/symbols"
)

// These constants match interposer/src/load/spare.h, which describes the sections that Rewrite
// fills.
const (
	maxName     = 95 // of a record's name, including the final zero
	recordSize  = 96
	stubSize    = 32
	symbolSize  = 24
	headerSize  = 64 // of a section
	dynamicSize = 16
	// versionGlobal is the version of a symbol without a version.
	versionGlobal = 1
	relaSize      = 24
)

// image is an interposer's library as built, with its variable parts.
type image struct {
	content []byte
	file    *elf.File
	symbols []elf.Sym64 // of .dynsym, including the empty first symbol
	first   int         // index of the first symbol that the library defines
	strings []byte      // of .dynstr
	stubs   int         // number of spare stubs
}

// These constants are the sections of an interposer, in the order in which their tables are
// written.
const (
	secSymbols  = ".dynsym"
	secHash     = ".gnu.hash"
	secVersions = ".gnu.version"
	secStrings  = ".dynstr"
	secDynamic  = ".dynamic"
	secRelocs   = ".rela.dyn"
	secTables   = ".vg.tables"
	secSpares   = ".vg.spares"
	secStubs    = ".vg.stubs"
)

// Rewrite returns a copy of an interposer's library, as built, that exports the names
// of a driver's library. Rewrite also returns the names that the interposer does not
// know.
func Rewrite(library []byte, driver []Export, kind Kind) ([]byte, []Unknown, error) {
	im, err := readImage(library)
	if err != nil {
		return nil, nil, err
	}
	keep, unknown := plan(im.names(), driver, kind, im.stubs)
	if err := im.write(keep, unknown); err != nil {
		return nil, nil, err
	}
	return im.content, unknown, nil
}

func readImage(library []byte) (*image, error) {
	file, err := openELF(readerOf(library))
	if err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNotOurs, err)
	}
	im := &image{content: slices.Clone(library), file: file}
	for _, name := range []string{secSymbols, secHash, secVersions, secStrings, secDynamic, secRelocs, secTables, secSpares, secStubs, noteName} {
		s := file.Section(name)
		if s == nil || s.Type == elf.SHT_NOBITS || s.Offset > uint64(len(library)) || s.FileSize > uint64(len(library))-s.Offset || s.Size != s.FileSize {
			return nil, fmt.Errorf("%w (it has no whole section %s)", ErrNotOurs, name)
		}
	}
	if err := im.readSymbols(); err != nil {
		return nil, err
	}
	im.stubs = min(len(im.bytes(secStubs))/stubSize, len(im.bytes(secSpares))/recordSize)
	if slices.ContainsFunc(im.bytes(secSpares), func(b byte) bool { return b != 0 }) {
		return nil, fmt.Errorf("%w (it was made for a driver already)", ErrNotOurs)
	}
	return im, nil
}

// bytes returns a section's content. Writes to the content change the image.
func (im *image) bytes(section string) []byte {
	s := im.file.Section(section)
	return im.content[s.Offset : s.Offset+s.Size]
}

// readSymbols reads the tables to replace. readSymbols checks that no other part of the library
// depends on the order of the symbols that the library defines.
func (im *image) readSymbols() error {
	table, hash := im.bytes(secSymbols), im.bytes(secHash)
	im.strings = slices.Clone(im.bytes(secStrings))
	for at := 0; at+symbolSize <= len(table); at += symbolSize {
		im.symbols = append(im.symbols, elf.Sym64{
			Name:  binary.LittleEndian.Uint32(table[at:]),
			Info:  table[at+4],
			Other: table[at+5],
			Shndx: binary.LittleEndian.Uint16(table[at+6:]),
			Value: binary.LittleEndian.Uint64(table[at+8:]),
			Size:  binary.LittleEndian.Uint64(table[at+16:]),
		})
	}
	if len(hash) < 16 || len(im.bytes(secVersions)) < 2*len(im.symbols) {
		return fmt.Errorf("%w (its symbols have no hash table, or no versions)", ErrNotOurs)
	}
	first := binary.LittleEndian.Uint32(hash[4:])
	if uint64(first) > uint64(len(im.symbols)) {
		return fmt.Errorf("%w (its hash table is of %d symbols)", ErrNotOurs, first)
	}
	im.first = int(first)
	for _, s := range im.symbols[im.first:] {
		if _, ok := im.name(s); !ok || elf.SectionIndex(s.Shndx) == elf.SHN_UNDEF {
			return fmt.Errorf("%w (its defined symbols are not the last)", ErrNotOurs)
		}
	}
	relocations := im.bytes(secRelocs)
	for at := 0; at+relaSize <= len(relocations); at += relaSize {
		if index := binary.LittleEndian.Uint64(relocations[at+8:]) >> 32; index >= uint64(im.first) && index != 0 {
			return fmt.Errorf("%w (a relocation needs symbol %d, which is its own)", ErrNotOurs, index)
		}
	}
	return nil
}

func (im *image) name(s elf.Sym64) (string, bool) {
	if uint64(s.Name) >= uint64(len(im.strings)) {
		return "", false
	}
	name, _, whole := strings.Cut(string(im.strings[s.Name:min(len(im.strings), int(s.Name)+maxSymbol)]), "\x00")
	return name, whole
}

// maxSymbol is the greatest length of a symbol's name.
const maxSymbol = 1024

// names returns the names that the library exports.
func (im *image) names() []string {
	var names []string
	for _, s := range im.symbols[im.first:] {
		if name, ok := im.name(s); ok {
			names = append(names, name)
		}
	}
	return names
}

// export is a symbol that the variant exports.
type export struct {
	name   string
	symbol elf.Sym64
}

func (im *image) write(keep map[string]bool, unknown []Unknown) error {
	var exports []export
	for _, s := range im.symbols[im.first:] {
		if name, _ := im.name(s); keep[name] {
			exports = append(exports, export{name, s})
		}
	}
	text := slices.Clone(im.strings) // other tables point into .dynstr
	for stub, u := range offered(unknown) {
		im.fillSpare(stub, u)
		exports = append(exports, export{u.Name, im.stubSymbol(stub, len(text))})
		text = append(append(text, u.Name...), 0)
	}
	hash, ordered := gnuHash(exports, im.first)
	return im.replaceTables(ordered, hash, text)
}

// offered returns the names with a stub.
func offered(unknown []Unknown) []Unknown {
	return slices.DeleteFunc(slices.Clone(unknown), func(u Unknown) bool { return u.Treatment == "" })
}

// fillSpare writes the record of a stub.
func (im *image) fillSpare(stub int, u Unknown) {
	record := im.bytes(secSpares)[stub*recordSize : (stub+1)*recordSize]
	record[0] = map[symbols.Treatment]byte{symbols.Pass: 'p', symbols.Refuse: 'r', symbols.Capture: 'c'}[u.Treatment]
	copy(record[1:len(record)-1], u.Name)
}

func (im *image) stubSymbol(stub, name int) elf.Sym64 {
	index := slices.IndexFunc(im.file.Sections, func(s *elf.Section) bool { return s.Name == secStubs })
	return elf.Sym64{
		Name: uint32(name), Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), Shndx: uint16(index),
		Value: im.file.Sections[index].Addr + uint64(stub*stubSize), Size: stubSize,
	}
}

// replaceTables writes the tables into the space that the library reserves for tables.
// replaceTables points the dynamic section and the section headers to the space.
func (im *image) replaceTables(exports []export, hash, text []byte) error {
	order := binary.LittleEndian
	var table, versions []byte
	for _, s := range im.symbols[:im.first] {
		table = appendSymbol(table, s)
	}
	versions = append(versions, im.bytes(secVersions)[:2*im.first]...)
	for _, e := range exports {
		table = appendSymbol(table, e.symbol)
		versions = order.AppendUint16(versions, versionGlobal)
	}
	room := im.bytes(secTables)
	address := im.file.Section(secTables).Addr
	used := 0
	for _, t := range []struct {
		section string
		tag     elf.DynTag
		content []byte
	}{
		{secSymbols, elf.DT_SYMTAB, table}, {secHash, elf.DT_GNU_HASH, hash},
		{secVersions, elf.DT_VERSYM, versions}, {secStrings, elf.DT_STRTAB, text},
	} {
		used = (used + 7) &^ 7
		if len(t.content) > len(room)-used {
			return fmt.Errorf("%w (%d exported names)", ErrNoRoom, len(exports))
		}
		copy(room[used:], t.content)
		if err := im.point(t.section, t.tag, address+uint64(used), uint64(len(t.content))); err != nil {
			return err
		}
		used += len(t.content)
	}
	return im.setDynamic(elf.DT_STRSZ, uint64(len(text)))
}

func appendSymbol(table []byte, s elf.Sym64) []byte {
	table = binary.LittleEndian.AppendUint32(table, s.Name)
	table = append(table, s.Info, s.Other)
	table = binary.LittleEndian.AppendUint16(table, s.Shndx)
	table = binary.LittleEndian.AppendUint64(table, s.Value)
	return binary.LittleEndian.AppendUint64(table, s.Size)
}

// point moves a table: in the dynamic section for the loader, and in the section
// header for tools.
func (im *image) point(section string, tag elf.DynTag, address, size uint64) error {
	header, err := im.header(section)
	if err != nil {
		return err
	}
	tables := im.file.Section(secTables)
	binary.LittleEndian.PutUint64(header[16:], address)
	binary.LittleEndian.PutUint64(header[24:], tables.Offset+address-tables.Addr)
	binary.LittleEndian.PutUint64(header[32:], size)
	return im.setDynamic(tag, address)
}

// header returns the bytes of a section's header.
func (im *image) header(section string) ([]byte, error) {
	index := slices.IndexFunc(im.file.Sections, func(s *elf.Section) bool { return s.Name == section })
	start := binary.LittleEndian.Uint64(im.content[40:]) // e_shoff
	at := start + uint64(index)*headerSize
	if start > uint64(len(im.content)) || at > uint64(len(im.content)) || uint64(len(im.content))-at < headerSize {
		return nil, fmt.Errorf("%w (its section headers are cut off)", ErrNotOurs)
	}
	return im.content[at : at+headerSize], nil
}

var errNoTag = errors.New("its dynamic section is incomplete")

func (im *image) setDynamic(tag elf.DynTag, value uint64) error {
	entries := im.bytes(secDynamic)
	for at := 0; at+dynamicSize <= len(entries); at += dynamicSize {
		if elf.DynTag(binary.LittleEndian.Uint64(entries[at:])) == tag {
			binary.LittleEndian.PutUint64(entries[at+8:], value)
			return nil
		}
	}
	return fmt.Errorf("%w (%w: no %v)", ErrNotOurs, errNoTag, tag)
}

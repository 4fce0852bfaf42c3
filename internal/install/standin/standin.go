// SPDX-License-Identifier: Apache-2.0

// Package standin creates libraries that contain only their name. The loader of a 32-bit program
// cannot preload the 64-bit interposer, and writes an error for each of the interposer's libraries.
// If the loader has already loaded a library whose DT_SONAME is the path to preload, the loader
// uses the loaded library and writes nothing.
package standin

import (
	"bytes"
	"debug/elf"
	"encoding/binary"

	"github.com/nri-vgpu/nri-vgpu/internal/machine"
)

// segments is the number of segments of a library. The segments are the whole file, the dynamic
// section, and the mark that the stack is not executable.
const segments = 3

// writer writes the parts of an ELF file. The width of words depends on the file's class.
type writer struct {
	bytes.Buffer
	class elf.Class
}

func (w *writer) put(values ...any) {
	for _, v := range values {
		_ = binary.Write(w, binary.LittleEndian, v) // a Buffer accepts all writes
	}
}

func (w *writer) words(values ...uint64) {
	for _, v := range values {
		if w.class == elf.ELFCLASS32 {
			w.put(uint32(v))
		} else {
			w.put(v)
		}
	}
}

// sizes contains the sizes of the parts in a class.
type sizes struct{ header, segment, word, symbol uint64 }

var sizesOf = map[elf.Class]sizes{
	elf.ELFCLASS32: {header: 52, segment: 32, word: 4, symbol: 16},
	elf.ELFCLASS64: {header: 64, segment: 56, word: 8, symbol: 24},
}

var machineOf = map[elf.Class]elf.Machine{elf.ELFCLASS32: machine.ELF32, elf.ELFCLASS64: machine.ELF}

// Library returns a library of this class with this name. The library has no code, no data and
// no symbols.
func Library(class elf.Class, name string) []byte {
	size := sizesOf[class]
	text := append([]byte{0}, name...)
	text = append(text, 0)
	const entries = 7
	dynamic := size.header + segments*size.segment
	hash := dynamic + entries*2*size.word
	const hashSize = 4 * 4 // one bucket and one chain, for the null symbol
	symbols := hash + hashSize
	names := symbols + size.symbol
	end := names + uint64(len(text))

	w := &writer{class: class}
	w.header(size)
	// The loader writes addresses into the dynamic section.
	w.segment(elf.PT_LOAD, elf.PF_R|elf.PF_W, 0, end, 4096)
	w.segment(elf.PT_DYNAMIC, elf.PF_R|elf.PF_W, dynamic, hash-dynamic, size.word)
	w.segment(elf.PT_GNU_STACK, elf.PF_R|elf.PF_W, 0, 0, 16)
	w.words(
		uint64(elf.DT_SONAME), 1,
		uint64(elf.DT_HASH), hash,
		uint64(elf.DT_STRTAB), names,
		uint64(elf.DT_STRSZ), uint64(len(text)),
		uint64(elf.DT_SYMTAB), symbols,
		uint64(elf.DT_SYMENT), size.symbol,
		uint64(elf.DT_NULL), 0,
	)
	w.put(uint32(1), uint32(1), uint32(0), uint32(0))
	w.put(make([]byte, size.symbol), text)
	return w.Bytes()
}

func (w *writer) header(size sizes) {
	ident := [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(w.class), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)}
	w.put(ident, uint16(elf.ET_DYN), uint16(machineOf[w.class]), uint32(elf.EV_CURRENT))
	w.words(0, size.header, 0)
	var flags uint32
	if w.class == elf.ELFCLASS32 {
		flags = machine.Flags32
	}
	w.put(flags, uint16(size.header), uint16(size.segment), uint16(segments), uint16(0), uint16(0), uint16(0))
}

func (w *writer) segment(kind elf.ProgType, flags elf.ProgFlag, at, length, align uint64) {
	w.put(uint32(kind))
	if w.class == elf.ELFCLASS64 {
		w.put(uint32(flags))
	}
	w.words(at, at, at, length, length)
	if w.class == elf.ELFCLASS32 {
		w.put(uint32(flags))
	}
	w.words(align)
}

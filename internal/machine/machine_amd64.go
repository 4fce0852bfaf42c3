// SPDX-License-Identifier: Apache-2.0

package machine

import "debug/elf"

const (
	// ELF is the machine in the headers of libraries.
	ELF = elf.EM_X86_64
	// ELF32 is the machine of 32-bit libraries that the processor can also run.
	ELF32 = elf.EM_386
	// Flags32 are the flags in the headers of 32-bit libraries.
	Flags32 = 0
	// Multiarch is Debian's name of the directories with libraries.
	Multiarch = "x86_64-linux-gnu"
)

// Platforms and Platforms32 are the values that the loaders of 64-bit and 32-bit programs
// substitute for $PLATFORM. The value is the kernel's value, or the processor's name in glibc before
// 2.37. For any other value, the directory is missing, and the loader writes one line to standard
// error.
var (
	Platforms   = []string{"x86_64", "haswell", "xeon_phi"}
	Platforms32 = []string{"i386", "i486", "i586", "i686"}
)

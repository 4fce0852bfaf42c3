// SPDX-License-Identifier: Apache-2.0

package machine

import "debug/elf"

const (
	// ELF is the machine in the headers of libraries.
	ELF = elf.EM_AARCH64
	// ELF32 is the machine of 32-bit libraries that some processors can also run.
	ELF32 = elf.EM_ARM
	// Flags32 are the flags in the headers of 32-bit libraries: version 5 of the ABI.
	Flags32 = 0x05000000
	// Multiarch is Debian's name of the directories with libraries.
	Multiarch = "aarch64-linux-gnu"
)

// Platforms and Platforms32 are the values that the loaders of 64-bit and 32-bit programs
// substitute for $PLATFORM.
var (
	Platforms   = []string{"aarch64"}
	Platforms32 = []string{"v7l", "v8l"}
)

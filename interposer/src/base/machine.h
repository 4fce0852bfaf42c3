// SPDX-License-Identifier: Apache-2.0

// This header names the machine that the libraries are built for.

#ifndef VG_MACHINE_H
#define VG_MACHINE_H

// VG_ELF_MACHINE is the machine in the headers of libraries. VG_MULTIARCH is Debian's name of the
// directories with libraries.
#if defined(__x86_64__)
#define VG_ELF_MACHINE EM_X86_64
#define VG_MULTIARCH "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define VG_ELF_MACHINE EM_AARCH64
#define VG_MULTIARCH "aarch64-linux-gnu"
#else
#error "machine.h does not know this architecture"
#endif

#endif

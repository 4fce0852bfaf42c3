// SPDX-License-Identifier: Apache-2.0

// This header declares VG_LARGE, which places large variables.

#ifndef VG_LARGE_H
#define VG_LARGE_H

// VG_LARGE puts a zeroed variable behind all other zeroed variables. The small variables then share
// a page that relocations change anyway, so that the start of a process touches no other page.
#define VG_LARGE __attribute__((section(".bss.large")))

#endif

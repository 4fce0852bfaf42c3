// SPDX-License-Identifier: Apache-2.0

// This header declares where large variables are.

#ifndef VG_LARGE_H
#define VG_LARGE_H

// VG_LARGE puts a zeroed variable behind all other zeroed variables. The small variables are then
// on the page that relocations change anyway, and cost a process's start no other page.
#define VG_LARGE __attribute__((section(".bss.large")))

#endif

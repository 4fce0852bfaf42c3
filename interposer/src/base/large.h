// SPDX-License-Identifier: Apache-2.0

// This header declares VG_LARGE, which places large variables.

#ifndef VG_LARGE_H
#define VG_LARGE_H

// VG_LARGE puts a zeroed variable into the file, before the data that relocations change (large.ld).
// The other zeroed variables then share a page with that data. The start of a process touches no other
// page, and the loader maps no further memory.
#define VG_LARGE __attribute__((section(".vg.large")))

#endif

// SPDX-License-Identifier: Apache-2.0

// Stubs for names that only the node's driver has. The installer gives them their
// names: it copies this library, fills vg_spares, and writes the table of exported
// names anew (pkg/driverlib). In the library as it is built, none has a name.

#ifndef VG_SPARE_H
#define VG_SPARE_H

#ifndef __ASSEMBLER__

enum { vg_spare_name_size = 95 };

struct vg_spare {
	char treatment; // 'r' refuse, 'c' begins a capture, else pass
	char name[vg_spare_name_size];
};

#endif

// Also sizes of stubs.S: how many spares there are, of a stub, and of the room that
// the installer writes tables into.
#define VG_SPARE_COUNT 128
#define VG_SPARE_RECORD 96
#define VG_SPARE_STUB 32
#define VG_TABLES_SIZE (96 * 1024)

#endif

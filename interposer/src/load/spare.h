// SPDX-License-Identifier: Apache-2.0

// This header covers stubs for names that only the node's driver has. The installer
// (internal/driverlib) copies this library, writes the names into vg_spares, and writes a new table
// of exported names. In the build's library, no spare has a name.

#ifndef VG_SPARE_H
#define VG_SPARE_H

#ifndef __ASSEMBLER__

enum { vg_spare_name_size = 95 };

struct vg_spare {
	char treatment; // 'r': refuse; 'c': begins a capture; any other: pass
	char name[vg_spare_name_size];
};

#endif

// These constants are the number of spares, and the sizes of a record, of a stub, and of the room
// for the installer's tables. stubs.S and spares.S also use these constants.
#define VG_SPARE_COUNT 128
#define VG_SPARE_RECORD 96
#define VG_SPARE_STUB 32
#define VG_TABLES_SIZE (96 * 1024)

#endif

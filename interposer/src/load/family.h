// SPDX-License-Identifier: Apache-2.0

// This header declares the treatment of the driver's functions that this library does not know. The
// patterns of symbols/families.txt decide.

#ifndef VG_FAMILY_H
#define VG_FAMILY_H

enum vg_family { vg_family_pass, vg_family_refuse, vg_family_capture };

// vg_family_of returns the treatment of a name.
enum vg_family vg_family_of(const char *name);

#endif

// SPDX-License-Identifier: Apache-2.0

// What may be done with functions of the driver that are not known here: decided by
// their names, as symbols/families.txt says.

#ifndef VG_FAMILY_H
#define VG_FAMILY_H

enum vg_family { vg_family_pass, vg_family_refuse, vg_family_capture };

// vg_family_of returns the treatment of a name.
enum vg_family vg_family_of(const char *name);

#endif

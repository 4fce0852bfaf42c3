// SPDX-License-Identifier: Apache-2.0

// Whether a process is on its way out, by the kernel's word.

#ifndef VG_DYING_H
#define VG_DYING_H

#include <stdbool.h>
#include <stdint.h>

// vg_is_dying is true for a process that runs no more, but of which some thread has
// yet to give back what it shares, such as open files. It is false for one that
// lives, that is gone or a zombie, and where that cannot be told.
bool vg_is_dying(uint32_t pid);

#endif

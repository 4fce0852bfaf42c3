// SPDX-License-Identifier: Apache-2.0

// This header declares how to find out whether a process is exiting, according to the kernel.

#ifndef VG_DYING_H
#define VG_DYING_H

#include <stdbool.h>
#include <stdint.h>

// vg_dying reports whether a process no longer runs, but some thread has yet to release shared
// resources such as open files. vg_dying returns false for a process that lives, is gone or is a
// zombie, and if the kernel does not report its state.
bool vg_dying(uint32_t pid);

#endif

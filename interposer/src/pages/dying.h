// SPDX-License-Identifier: Apache-2.0

// This header declares the query whether a process is exiting, according to the kernel.

#ifndef VG_DYING_H
#define VG_DYING_H

#include <stdbool.h>
#include <stdint.h>

// vg_dying reports whether a process is exiting, but some thread has yet to release shared
// resources such as open files. vg_dying returns false for a process that is alive, gone or a
// zombie. vg_dying also returns false if the kernel does not report the state.
bool vg_dying(uint32_t pid);

#endif

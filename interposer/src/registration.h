// SPDX-License-Identifier: Apache-2.0

// Telling the agent of this process, so that it can list the container's
// processes. Nothing depends on it.

#ifndef VG_REGISTRATION_H
#define VG_REGISTRATION_H

#include <stdint.h>

// vg_register tells the agent, over the socket below `dir`, that this process
// holds a slot. It waits for nothing, and leaves no descriptor and no thread
// behind; where there is no agent, nothing happens.
void vg_register(const char *dir, uint32_t slot);

#endif

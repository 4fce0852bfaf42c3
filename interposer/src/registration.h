// SPDX-License-Identifier: Apache-2.0

// Telling the agent of this process, so that it can list the container's
// processes. Nothing depends on it.

#ifndef VG_REGISTRATION_H
#define VG_REGISTRATION_H

#include <stdint.h>

enum { vg_agent_path_size = 108 };

// vg_agent_path writes the path of the agent's socket below `dir`, "" if it is too long.
void vg_agent_path(const char *dir, char path[vg_agent_path_size]);

// vg_register tells the agent, over its socket, that this process
// holds a slot. It waits for nothing, and leaves no descriptor and no thread
// behind; where there is no agent, nothing happens.
void vg_register(const char *path, uint32_t slot);

#endif

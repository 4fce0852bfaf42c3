// SPDX-License-Identifier: Apache-2.0

// This header covers registration of this process with the agent, which lists the container's
// processes. No limit depends on the registration.

#ifndef VG_REGISTRATION_H
#define VG_REGISTRATION_H

#include <stdint.h>

enum { vg_agent_path_size = 108 };

// vg_registration_path writes the path of the agent's socket below `dir`, or "" if the path is too
// long.
void vg_registration_path(const char *dir, char path[vg_agent_path_size]);

// vg_registration_send registers this process, which holds a slot, with the agent.
// vg_registration_send takes a millisecond at most, and leaves no open descriptor and no thread.
// Without an agent, vg_registration_send has no effect.
void vg_registration_send(const char *path, uint32_t slot);

#endif

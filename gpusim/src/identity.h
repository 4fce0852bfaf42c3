// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_IDENTITY_H
#define GPUSIM_IDENTITY_H

#include "state.h"

/* A number that two processes, or two execs of one, do not share. */
uint64_t gs_exec_id(void);

/* Whether a live process holds this identity, and its pid as gs_proc_alive(). */
bool gs_identity_alive(const struct gs_handle *handle, uint32_t id, pid_t *pid);

/* Takes an identity; 0, -EBUSY (ours already), or -EAGAIN (another's). */
int gs_identity_take(struct gs_handle *handle, uint32_t id);

void gs_identity_drop(struct gs_handle *handle, uint32_t id);

#endif

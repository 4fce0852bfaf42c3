// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_IDENTITY_H
#define GPUSIM_IDENTITY_H

#include "state.h"

/*
 * gs_exec_id returns a number that differs between processes, and between two execs of a process.
 */
uint64_t gs_exec_id(void);

/*
 * gs_identity_alive reports whether a live process holds this identity, and sets *pid as
 * gs_proc_alive() does.
 */
bool gs_identity_alive(const struct gs_handle *handle, uint32_t id, pid_t *pid);

/*
 * gs_identity_take takes an identity. gs_identity_take returns 0, -EBUSY (this process holds the
 * identity) or -EAGAIN (another process holds the identity).
 */
int gs_identity_take(struct gs_handle *handle, uint32_t id);

void gs_identity_drop(struct gs_handle *handle, uint32_t id);

#endif

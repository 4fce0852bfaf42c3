// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_REPAIR_H
#define GPUSIM_REPAIR_H

#include "state.h"

/* gs_repair recomputes every derived value after the lock's holder died. The caller holds the
 * lock. */
void gs_repair(struct gs_state *state);

/*
 * gs_lock_inherit frees the lock if the previous holder of this process's identity died while it
 * held the lock.
 */
void gs_lock_inherit(struct gs_handle *handle);

/* gs_forget removes a process from the timeline and the table. The caller holds the lock. */
void gs_forget(struct gs_state *state, uint32_t slot);

#endif

// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that several processes hold: it counts for one of them, and is free when
 * none holds it any more. Only where the profile has imports keep memory.
 */
#ifndef GPUSIM_SHARED_H
#define GPUSIM_SHARED_H

#include "state.h"

/* All are called with the machine's lock. An id is never 0. */

/* Files memory that the calling process is charged with; 0 where there is no room. */
uint64_t gs_shared_add(struct gs_handle *handle, uint32_t gpu, uint64_t bytes);

/* Whether anybody holds it still. */
bool gs_shared_there(const struct gs_handle *handle, uint64_t id);

/* One more importer, the calling process; false where it is gone or has too many. */
bool gs_shared_import(struct gs_handle *handle, uint64_t id);
void gs_shared_close(struct gs_handle *handle, uint64_t id);

/* Its maker lets go: the charge goes to an importer, or the memory is freed. */
void gs_shared_release(struct gs_handle *handle, uint64_t id);

/* A process has ended. */
void gs_shared_forget(struct gs_state *state, uint32_t slot);

#endif

// SPDX-License-Identifier: Apache-2.0
/*
 * This header covers memory that several processes hold. The simulator charges one of the processes
 * with the memory, and frees the memory when no process holds the memory. Shared memory of this
 * kind exists only if the profile sets imports_keep.
 */
#ifndef GPUSIM_SHARED_H
#define GPUSIM_SHARED_H

#include "state.h"

/* The caller of each function holds the machine's lock. An id is never 0. */

/* gs_shared_add adds memory that the calling process is charged with. gs_shared_add returns the
 * memory's id, or 0 without room. */
uint64_t gs_shared_add(struct gs_handle *handle, uint32_t gpu, uint64_t bytes);

/* gs_shared_there reports whether any process still holds the memory. */
bool gs_shared_there(const struct gs_handle *handle, uint64_t id);

/* gs_shared_import adds the calling process as importer. gs_shared_import returns false if the
 * memory is gone or has too many importers. */
bool gs_shared_import(struct gs_handle *handle, uint64_t id);
void gs_shared_close(struct gs_handle *handle, uint64_t id);

/* gs_shared_release drops the hold of the process that allocated the memory. The charge moves to an
 * importer, or the memory is freed. */
void gs_shared_release(struct gs_handle *handle, uint64_t id);

/* gs_shared_forget drops the holds of a process that has ended. */
void gs_shared_forget(struct gs_state *state, uint32_t slot);

#endif

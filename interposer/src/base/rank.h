// SPDX-License-Identifier: Apache-2.0

// This header declares the lock order of the interposer's mutexes. A thread that holds a mutex may
// only lock mutexes of a higher rank. Builds with VG_DEBUG, such as the sanitizers' builds, assert
// the order at every lock.

#ifndef VG_RANK_H
#define VG_RANK_H

#include <stdint.h>

// VG_RANKS calls X(rank, mutex) for each rank, the lowest first.
#define VG_RANKS(X)                              \
	X(INIT, "vg_state.init")                 \
	X(AUDIT, "vg_state.audit_mutex")         \
	X(METER, "vg_meter.mutex")               \
	X(DESTROYED, "vg_state.destroyed_mutex") \
	X(SLOW, "vg_pages.slow")                 \
	X(POOLS, "vg_state.pool_mutex")          \
	X(TABLE, "vg_shard.mutex")               \
	X(CORRECT, "vg_state.correction_mutex")  \
	X(LOOK, "vg_pages.look")                 \
	X(VERIFY, "vg_pages.verify")             \
	X(CAPTURES, "the mutex of capture.c")    \
	X(NVML, "the mutex of nvml.c")

enum vg_rank {
	VG_RANK_NONE, // rank of a mutex that was not initialised, and must not be locked
#define VG_RANK_ENTRY(rank, mutex) VG_RANK_##rank,
	VG_RANKS(VG_RANK_ENTRY)
#undef VG_RANK_ENTRY
	VG_RANK_COUNT,
};

#ifdef VG_DEBUG
// vg_rank_check aborts the process if a lock of this rank would break the order. vg_rank_enter and
// vg_rank_leave record the locks that the thread holds.
void vg_rank_check(uint32_t rank);
void vg_rank_enter(uint32_t rank);
void vg_rank_leave(uint32_t rank);
#endif

#endif

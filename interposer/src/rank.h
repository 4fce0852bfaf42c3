// SPDX-License-Identifier: Apache-2.0

// The order of our mutexes. A thread that holds one may take those of a higher rank
// only. Builds with VG_DEBUG, as the sanitizers' are, assert it at every lock.

#ifndef VG_RANK_H
#define VG_RANK_H

enum vg_rank {
	VG_RANK_NONE,    // of a mutex that was not initialised: never locked
	VG_RANK_INIT,    // vg_state.init
	VG_RANK_AUDIT,   // vg_state.audit_mutex
	VG_RANK_METER,   // vg_meter.mutex
	VG_RANK_FORGOTTEN, // vg_meter.forgotten_mutex
	VG_RANK_ORPHANS, // vg_state.orphan_mutex
	VG_RANK_SLOW,    // vg_pages.slow
	VG_RANK_POOLS,   // vg_state.pool_mutex
	VG_RANK_TABLE,   // vg_shard.mutex
	VG_RANK_CORRECT, // vg_state.correction_mutex
	VG_RANK_LOOK,    // vg_pages.look
	VG_RANK_VERIFY,  // vg_pages.verify
	VG_RANK_CAPTURES, // of capture.c
	VG_RANK_NVML,    // of the management library's pages
	VG_RANK_COUNT,
};

#endif

// SPDX-License-Identifier: Apache-2.0

// This header declares the state of the process, in a mapping that the kernel wipes in the child of
// a fork (MADV_WIPEONFORK). Any child therefore finds an unused state without a locked mutex, a
// slot or memory. The child sets up a new state when it calls cuInit.

#ifndef VG_STATE_H
#define VG_STATE_H

#include "base/mutex.h"
#include "driver/driver.h"
#include "pages/pages.h"
#include "pages/registration.h"
#include "table.h"

enum {
	vg_max_ordinals = 64, // devices that the driver may list
	// vg_max_pools is the limit of memory pools in one process. A record that was never used
	// takes no memory.
	vg_max_pools = 16384,
	vg_pool_hints = 1024,
	vg_uses_bits = 12,    // bits of the index into vg_state.uses
};

struct vg_meter;

// vg_pool_answer is the driver's answer about a pool.
struct vg_pool_answer {
	uint64_t ticket; // see pool_held.c
	uint64_t held;
	uint64_t used;
	bool knows_used;
	bool valid;
};

// vg_pool is a source of stream-ordered memory: a pool, or a device's graph memory. Only the driver
// knows the size of the device memory that a pool holds.
struct vg_pool {
	// Threads read the fields that identify the pool without a lock, and write these fields
	// under pool_mutex.
	_Atomic(CUmemoryPool) handle; // NULL: the graph memory of `ordinal`
	_Atomic CUdevice ordinal;
	uint32_t device;
	_Atomic bool in_use;
	_Atomic bool on_host;   // the pool holds no device memory
	_Atomic bool destroyed; // the program has destroyed the pool, which may still hold memory
	// `visits` counts the interposer's calls of the driver with the pool. The low bits
	// (vg_visitors) count the calls in progress. The high bits are the ticket of the last
	// query.
	_Atomic uint64_t visits;
	uint64_t charged;          // bytes accounted
	bool shareable;            // the pool can be exported, see sizes.h
	struct vg_size *sizes;     // of a shareable pool
	bool unlike;               // the pool keeps pieces in another way than expected
	bool imported;             // from another process, which may hold the charged memory
	uint64_t pointers;         // bytes imported from the pool and not freed, see pointer.h
	uint32_t arriving;         // pointers imported from the pool and not charged yet
	_Atomic uint64_t borrowed; // bytes of the charge that are reserved for calls in progress
	struct vg_pool_answer last; // the last applied answer
	// The following fields are for a pool that was destroyed while in use, or imported: see
	// pool_destroyed.h.
	_Atomic bool left; // the pool's destruction while in use is recorded
	uint64_t remaining;
	struct vg_leaving *leaving;
};

// vg_answer is the driver's answer about a GPU's memory, with its time and the container's memory
// at that time. vg_answer also holds the time of the last search for dead processes. vg_answer fits
// into one cache line, because an occasional caller finds the line outside of the processor's
// cache. Readers do not wait. A reader discards the answer if the version is odd, because a write
// is in progress, or if the version has changed afterwards.
struct vg_answer {
	_Alignas(64) _Atomic uint64_t version;
	_Atomic uint64_t ns;
	_Atomic uint64_t available;
	_Atomic uint64_t total;
	_Atomic uint64_t used;
	_Atomic uint64_t reaped_ns;
};

// vg_correction is the difference between a process's charge on a GPU and the sum of its calls'
// charges (see correction.h). The agent measured the difference.
struct vg_correction {
	uint64_t estimated; // bytes charged by estimate
	uint64_t credit;    // part of `estimated` that the process does not hold
	uint64_t unseen;    // bytes that the process holds beyond the charge
	uint64_t uncertain; // bytes charged for memory in another place, or for later growth
	uint64_t again;     // part of the next context's estimate that is charged already
	uint32_t contexts;  // charged contexts
	bool exports;       // the process may still hold exported memory that it has released
	bool doubted;       // the sum of estimates is unreliable, and no credit is granted
};

struct vg_state {
	_Atomic uint32_t ready;
	struct vg_mutex init; // held while the pages are opened and the slot is taken
	_Atomic uint64_t place;        // place of the last launch (place.c)
	_Atomic uint64_t stream_place; // place of the last launch on a created stream
	_Atomic(struct vg_meter *) meters[VG_MAX_DEVICES]; // by index, created at the first use
	_Atomic uint64_t answered_ns; // time of the newest of `answers`
	// by CUdevice: index on the pages plus one, or 0 for a GPU that is not on the pages
	uint32_t devices[vg_max_ordinals];
	// by index: bytes of empty granules that stay charged, see granule.h
	_Atomic uint64_t retained[VG_MAX_DEVICES];
	_Atomic uint64_t graph_epoch; // see cu_graph.c
	_Atomic uint32_t graph_calls; // launches in progress that may take memory
	_Atomic uint32_t graphs;      // executable graphs that have memory nodes
	_Atomic uint32_t stale_pools; // memory was freed since the last query of the pools
	// `calls` counts calls of the driver that may change this process's memory. The low half
	// counts the calls in progress. The high half counts all calls that have begun. See
	// audit.h.
	_Atomic uint64_t calls;
	_Atomic uint32_t destroyed_pools; // pools that were destroyed while in use
	_Atomic uint32_t shareable_pools; // pools that can be exported
	_Atomic uint32_t pointers_leaving; // imported pointers that streams have yet to free
	struct vg_mutex destroyed_mutex;
	struct vg_mutex pool_mutex;
	_Atomic uint32_t pools_end; // records of `pools` from this index on are unused
	uint32_t pools_free;        // no record before this index is free; guarded by pool_mutex
	_Atomic uint32_t primary_joins[VG_MAX_DEVICES]; // see cu_primary.c
	// the driver loads code at first use; set before the state is ready
	_Atomic uint32_t lazy;
	_Atomic uint32_t contexts; // all contexts that the process has created
	struct vg_mutex audit_mutex;      // held during a query to the agent
	char agent[vg_agent_path_size];   // the agent's socket; set before the state is ready
	_Atomic uint64_t asked_ms;        // time of the last query to the agent
	// end of the backoff after a query without an answer
	_Atomic uint64_t silent_until_ms;
	uint64_t silence_ms;              // guarded by audit_mutex
	_Atomic uint32_t measurements;     // counts answers just before they may be applied
	_Atomic uint32_t corrections_made; // counts answers that corrected a GPU's charge
	// a charge by estimate was made or ended since the last answer
	_Atomic uint32_t doubtful;
	struct vg_mutex correction_mutex;
	struct vg_correction corrections[VG_MAX_DEVICES]; // guarded by correction_mutex
	// The large fields are last, and the first of them is the path in `pages`. Each start touches only
	// the page of the fields above.
	struct vg_pages pages;
	struct vg_answer answers[VG_MAX_DEVICES]; // by index, see cu_info.c
	_Atomic uint64_t uses[1 << vg_uses_bits]; // recently used code, see use.h
	struct vg_table table;
	struct vg_pool pools[vg_max_pools];
	_Atomic uint32_t pool_lives[vg_max_pools];  // number of pools that have used each record
	// by hash of the handle: the record that was last found
	_Atomic uint32_t pool_hints[vg_pool_hints];
};

_Static_assert(offsetof(struct vg_state, pages.usage_path) + 64 <= 4096, "the page that each start touches");

// vg_state_new returns this process's state, and creates the state at the first call. vg_state_new
// returns NULL on failure.
struct vg_state *vg_state_new(void);

// vg_state_ready returns the state after a successful cuInit, and NULL before cuInit has succeeded.
extern _Atomic(struct vg_state *) vg_the_state;

static inline struct vg_state *vg_state_ready(void)
{
	struct vg_state *state = atomic_load_explicit(&vg_the_state, memory_order_acquire);

	return state && atomic_load_explicit(&state->ready, memory_order_acquire) ? state : NULL;
}

// vg_calls_begin and vg_calls_end enclose a call of the driver that may change this process's
// memory.
static inline void vg_calls_begin(struct vg_state *state)
{
	atomic_fetch_add(&state->calls, (UINT64_C(1) << 32) + 1);
}

static inline void vg_calls_end(struct vg_state *state)
{
	atomic_fetch_sub(&state->calls, 1);
}

// vg_state_context_bytes returns the slot's field for the charge of this process's contexts on a
// GPU.
static inline uint64_t *vg_state_context_bytes(struct vg_state *state, uint32_t device)
{
	return &vg_slot_device(&state->pages, (uint32_t)state->pages.slot, device)->context_bytes;
}

// vg_state_device returns the index of a device on the pages. vg_state_device returns -1 if the
// pages do not have the device: this container may then allocate nothing on the device.
int vg_state_device(const struct vg_state *state, CUdevice device);

// vg_state_ordinal returns the driver's number of a GPU on the pages, or -1 if the driver does not
// have the GPU.
CUdevice vg_state_ordinal(const struct vg_state *state, uint32_t device);

#endif

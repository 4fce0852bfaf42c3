// SPDX-License-Identifier: Apache-2.0

// All state that changes while a process runs lies in one mapping that the kernel wipes in the
// child of a fork (MADV_WIPEONFORK). However and whenever the child was made, it finds an unused
// state: no mutex held, no slot and no memory. The child sets up a new state when it calls cuInit.

#ifndef VG_STATE_H
#define VG_STATE_H

#include "base/mutex.h"
#include "driver/driver.h"
#include "pages/pages.h"
#include "pages/registration.h"
#include "table.h"

enum {
	vg_max_ordinals = 64, // devices that the driver may list
	// Memory pools that are followed in one process. A record that was never used takes no
	// memory.
	vg_max_pools = 16384,
	vg_pool_hints = 1024,
	vg_uses_bits = 12,    // bits of the index into the notes of used code
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

// vg_pool is a source of stream-ordered memory: a pool, or a device's memory of graphs. Only the
// driver knows how much device memory a pool holds.
struct vg_pool {
	// The fields that identify the pool are read without a lock and written under pool_mutex.
	_Atomic(CUmemoryPool) handle; // NULL: the graphs' memory of `ordinal`
	_Atomic CUdevice ordinal;
	uint32_t device;
	_Atomic bool in_use;
	_Atomic bool on_host;   // it holds no device memory
	_Atomic bool destroyed; // the program can no longer name it, but it holds memory
	// Our calls of the driver with it: in the low bits (vg_visitors) the calls under way, above
	// them the ticket of the last question.
	_Atomic uint64_t visits;
	uint64_t charged;          // bytes accounted
	bool shareable;            // it can be exported, see sizes.h
	struct vg_size *sizes;     // of a shareable pool
	bool unlike;               // the pool keeps pieces in another way than expected
	bool imported;             // from another process, which may hold the charged memory
	uint64_t pointers;         // bytes imported from it and not freed, see pointer.h
	uint32_t arriving;         // pointers imported from it and not charged yet
	_Atomic uint64_t borrowed; // bytes of the charge that are reserved for calls under way
	struct vg_pool_answer last; // the last applied answer
	// For a pool that was destroyed while in use, or imported: see pool_destroyed.h.
	_Atomic bool left; // its destruction while in use is recorded
	uint64_t remaining;
	struct vg_leaving *leaving;
};

// vg_answer is the driver's answer about a GPU's memory: the time of the answer, the container's
// memory at that time, and the time of the last search for dead processes. vg_answer fits into one
// cache line, because an occasional caller finds it cold. Readers do not wait. A reader discards
// the answer if the version is odd, which means a write is under way, or if the version has changed
// afterwards.
struct vg_answer {
	_Alignas(64) _Atomic uint64_t version;
	_Atomic uint64_t ns;
	_Atomic uint64_t available;
	_Atomic uint64_t total;
	_Atomic uint64_t used;
	_Atomic uint64_t reaped_ns;
};

// vg_correction is the difference between a process's charge on a GPU and the sum of its calls'
// charges, as the agent measured it: see correction.h.
struct vg_correction {
	uint64_t estimated; // bytes charged by estimate
	uint64_t credit;    // part of these bytes that was found not to be held
	uint64_t unseen;    // bytes held beyond the charge
	uint64_t uncertain; // bytes charged for memory that may lie elsewhere or is taken later
	uint64_t again;     // part of the next context's estimate that is charged already
	uint32_t contexts;  // charged contexts
	bool exports;       // exported memory was released, but may still be held
	bool doubted;       // the sum of estimates is not reliable: there is no credit
};

struct vg_state {
	_Atomic uint32_t ready;
	struct vg_mutex init; // held while the pages are opened and the slot is taken
	_Atomic uint64_t place;        // place of the last launch, see place.c
	_Atomic uint64_t stream_place; // place of the last launch on a created stream
	_Atomic(struct vg_meter *) meters[VG_MAX_DEVICES]; // by index, made when first needed
	struct vg_pages pages;
	struct vg_answer answers[VG_MAX_DEVICES]; // by index, see cu_info.c
	// By CUdevice: index on the pages plus one, or 0 for a GPU that is not on the pages.
	uint32_t devices[vg_max_ordinals];
	// By index: bytes of empty granules that stay charged, see granule.h.
	_Atomic uint64_t retained[VG_MAX_DEVICES];
	_Atomic uint64_t graph_epoch; // see cu_graph.c
	_Atomic uint32_t graph_calls; // launches under way that may take memory
	_Atomic uint32_t graphs;      // executable graphs that have memory nodes
	_Atomic uint32_t stale_pools; // memory was freed since the last query of the pools
	// Calls of the driver that may change this process's memory: in the low half the calls under
	// way, in the high half all calls that ever began. See audit.h.
	_Atomic uint64_t calls;
	_Atomic uint32_t destroyed_pools; // pools that were destroyed while in use
	_Atomic uint32_t shareable_pools; // pools that can be exported
	_Atomic uint32_t pointers_leaving; // imported pointers that streams have yet to free
	struct vg_mutex destroyed_mutex;
	struct vg_mutex pool_mutex;
	_Atomic uint32_t pools_end; // records of `pools` from here on are unused
	uint32_t pools_free;        // no record before this is free; guarded by pool_mutex
	_Atomic uint32_t primary_joins[VG_MAX_DEVICES]; // see cu_primary.c
	// The driver loads code at first use; set before the state is ready.
	_Atomic uint32_t lazy;
	_Atomic uint32_t contexts; // contexts that were ever made
	_Atomic uint64_t uses[1 << vg_uses_bits]; // recently used code, see use.h
	struct vg_mutex audit_mutex;      // held during a question to the agent
	char agent[vg_agent_path_size];   // the agent's socket; set before the state is ready
	_Atomic uint64_t asked_ms;        // when the agent was last asked
	// Until this time the agent, which did not answer, is not queried.
	_Atomic uint64_t silent_until_ms;
	uint64_t silence_ms;              // guarded by audit_mutex
	_Atomic uint32_t measurements;     // counts answers just before they may be applied
	_Atomic uint32_t corrections_made; // counts answers that corrected a GPU's charge
	// A charge by estimate was made or ended since the last answer.
	_Atomic uint32_t doubtful;
	struct vg_mutex correction_mutex;
	struct vg_correction corrections[VG_MAX_DEVICES]; // guarded by correction_mutex
	struct vg_table table;
	// Last, because they are large and mostly never touched.
	struct vg_pool pools[vg_max_pools];
	_Atomic uint32_t pool_lives[vg_max_pools];  // how many pools each record has stood for
	// By handle: the record that was last found for it.
	_Atomic uint32_t pool_hints[vg_pool_hints];
};

// vg_state_new returns this process's state, and makes it if needed; NULL: failure.
struct vg_state *vg_state_new(void);

// vg_state_ready returns the state after a successful cuInit, and NULL before.
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

// vg_state_device returns the index of a device on the pages, or -1: the pages do not have it, and
// this container may allocate nothing on it.
int vg_state_device(const struct vg_state *state, CUdevice device);

// vg_state_ordinal returns the driver's number of a GPU on the pages, or -1.
CUdevice vg_state_ordinal(const struct vg_state *state, uint32_t device);

#endif

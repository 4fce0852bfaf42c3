// SPDX-License-Identifier: Apache-2.0

// All that changes while a process runs lies in one mapping that the kernel
// empties in the child of a fork (MADV_WIPEONFORK): the child finds an untouched
// state, with no mutex held, no slot and no memory, however and whenever it was
// made, and sets up its own when it calls cuInit.

#ifndef VG_STATE_H
#define VG_STATE_H

#include "driver.h"
#include "pages.h"
#include "registration.h"
#include "table.h"

enum {
	vg_max_ordinals = 64, // devices that the driver may show
	// Memory pools that are followed in one process. A record that was never used
	// costs no memory.
	vg_max_pools = 16384,
	vg_pool_hints = 1024,
	vg_uses_bits = 12,    // of a number below that of notes of used code
};

// vg_pool_answer is what the driver said of a pool.
struct vg_pool_answer {
	uint64_t ticket; // see pool.c
	uint64_t held;
	uint64_t used;
	bool knows_used;
	bool valid;
};

// vg_pool is a source of stream-ordered memory: a pool, or a device's memory of
// graphs. What it holds of the device is for the driver to say.
struct vg_pool {
	// What identifies it is read without a lock, and changed under pool_mutex.
	_Atomic(CUmemoryPool) handle; // NULL: the graphs' memory of `ordinal`
	_Atomic CUdevice ordinal;
	uint32_t device;
	_Atomic bool in_use;
	_Atomic bool on_host;   // it holds no device memory at all
	_Atomic bool destroyed; // the program cannot name it any more, but it holds memory
	// Calls of the driver that we make with it: in the low bits (vg_visitors)
	// those under way, above them the ticket of the last question.
	_Atomic uint64_t visits;
	uint64_t charged;          // bytes accounted
	bool shareable;            // it can be exported, see sizes.h
	struct vg_size *sizes;     // of a shareable pool
	bool unlike;               // it keeps pieces in another way than is expected
	bool imported;             // from another process: what is charged may be held there
	uint64_t pointers;         // bytes that were imported of it and not freed, see pointer.h
	uint32_t arriving;         // pointers that were imported of it and are not charged yet
	_Atomic uint64_t borrowed; // promised to calls under way, out of what is charged
	struct vg_pool_answer last; // the last answer that was applied
	// Of a pool that was destroyed while in use, or imported: see orphan.h.
	_Atomic bool left; // it was destroyed while in use, and that is noted
	uint64_t remaining;
	struct vg_leaving *leaving;
};

// vg_answer is what the driver said of a GPU's memory and when, what the container had
// then, and when dead processes were last looked for: in one line of the cache, as who
// asks now and then finds it cold. No reader waits: it is being written while the
// version is odd, and was if the version is another afterwards.
struct vg_answer {
	_Alignas(64) _Atomic uint64_t version;
	_Atomic uint64_t ns;
	_Atomic uint64_t available;
	_Atomic uint64_t total;
	_Atomic uint64_t used;
	_Atomic uint64_t reaped_ns;
};

// vg_correction is what a process's charge on a GPU differs by from the sum of what its
// calls were charged with, as the agent measured it: see correction.h.
struct vg_correction {
	uint64_t estimated; // charged by estimate
	uint64_t credit;    // of that, found not to be held
	uint64_t unseen;    // held beyond what was charged
	uint64_t uncertain; // charged for what may be elsewhere, or is taken later
	uint64_t again;     // of the next context's estimate, charged already: see correction.h
	uint32_t contexts;  // that are charged
	bool exports;       // exported memory was released, and may be held still
	bool doubted;       // it is not known what was charged by estimate: there is no credit
};

struct vg_state {
	_Atomic uint32_t ready;
	struct vg_mutex init; // held while the pages are opened and the slot is taken
	_Atomic uint64_t place;        // of the last launch, see throttle.c
	_Atomic uint64_t stream_place; // …of the last on a stream that was made
	_Atomic(struct vg_meter *) meters[VG_MAX_DEVICES]; // by index, made when first needed
	struct vg_pages pages;
	struct vg_answer answers[VG_MAX_DEVICES]; // by index, see cu_info.c
	// By CUdevice: index on the pages plus one, or 0 for a GPU that the pages
	// do not have.
	uint32_t devices[vg_max_ordinals];
	// By index: bytes of empty granules that stay charged, see linear.c.
	_Atomic uint64_t retained[VG_MAX_DEVICES];
	_Atomic uint64_t graph_epoch; // see cu_graph.c
	_Atomic uint32_t graph_calls; // launches under way that may take memory
	_Atomic uint32_t graphs;      // executable graphs that have memory nodes
	_Atomic uint32_t stale_pools; // something was freed since pools were asked
	// Calls of the driver that may change what this process holds: in the low
	// half those under way, in the high half all that ever began. See audit.h.
	_Atomic uint64_t calls;
	_Atomic uint32_t orphans; // pools that were destroyed while in use
	_Atomic uint32_t shareable_pools; // pools that can be exported
	_Atomic uint32_t pointers_leaving; // imported pointers that streams have yet to free
	struct vg_mutex orphan_mutex;
	struct vg_mutex pool_mutex;
	_Atomic uint32_t pools_end; // from here on, no record of `pools` is in use
	uint32_t pools_free;        // nor is one before this free; guarded by pool_mutex
	_Atomic uint32_t primary_joins[VG_MAX_DEVICES]; // see cu_primary.c
	_Atomic uint32_t lazy;     // code is loaded when it is used; set before the state is ready
	_Atomic uint32_t contexts; // that were ever made
	_Atomic uint64_t uses[1 << vg_uses_bits]; // code that was used lately, see use.h
	struct vg_mutex audit_mutex;      // held over a question to the agent
	char agent[vg_agent_path_size];   // its socket; set before the state is ready
	_Atomic uint64_t asked_ms;        // when it was asked last
	_Atomic uint64_t silent_until_ms; // it did not answer
	uint64_t silence_ms;              // guarded by audit_mutex
	_Atomic uint32_t measurements;     // answers that were perhaps applied, counted before
	_Atomic uint32_t corrections_made; // answers by which a GPU's charge was corrected
	_Atomic uint32_t doubtful;        // something was charged by estimate since, or ended
	struct vg_mutex correction_mutex;
	struct vg_correction corrections[VG_MAX_DEVICES]; // guarded by correction_mutex
	struct vg_table table;
	// Last, as they are large and most of them is never touched.
	struct vg_pool pools[vg_max_pools];
	_Atomic uint32_t pool_lives[vg_max_pools];  // how many pools each record was of
	_Atomic uint32_t pool_hints[vg_pool_hints]; // by handle: which record it had last
};

// vg_state_new is this process's state, made if need be; NULL on failure.
struct vg_state *vg_state_new(void);

// vg_ready_state is the state after a successful cuInit, else NULL.
extern _Atomic(struct vg_state *) vg_the_state;

static inline struct vg_state *vg_ready_state(void)
{
	struct vg_state *state = atomic_load_explicit(&vg_the_state, memory_order_acquire);

	return state && atomic_load_explicit(&state->ready, memory_order_acquire) ? state : NULL;
}

// vg_begin and vg_end enclose a call of the driver that may change what this
// process holds.
static inline void vg_begin(struct vg_state *state)
{
	atomic_fetch_add(&state->calls, (UINT64_C(1) << 32) + 1);
}

static inline void vg_end(struct vg_state *state)
{
	atomic_fetch_sub(&state->calls, 1);
}

// vg_device_index is the index of a device on the pages, or -1 for one that
// they do not have: such a GPU gives this container nothing.
int vg_device_index(const struct vg_state *state, CUdevice device);

// vg_device_ordinal is the driver's number of a GPU of the pages, or -1.
CUdevice vg_device_ordinal(const struct vg_state *state, uint32_t device);

#endif

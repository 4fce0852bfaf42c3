// SPDX-License-Identifier: Apache-2.0

// A claim is memory reserved for one call of the driver. Every way of acquiring
// memory goes: claim the most that the call can take; call the driver; settle
// the claim at what was taken, or cancel it.

#ifndef VG_CLAIM_H
#define VG_CLAIM_H

#include "state.h"

struct vg_claim {
	struct vg_state *state;
	bool open;              // the driver may be called, and the claim is not over yet
	struct vg_entry *entry; // to be filled and put into the table
	uint32_t device;
	uint32_t way;
	uint64_t bytes;
	uint64_t again;    // of a context's estimate, charged already: see correction.h
	uint64_t borrowed; // of what a pool holds anyway: see pool.c
	uint64_t grown;    // what the pool held more after the call
	bool granted;      // the call went well
	struct vg_pool *pool;
	uint64_t piece; // of a pool that can be exported: what was asked of it, see sizes.h
	uint64_t pointers; // of a pointer that was imported of the pool
};

// vg_claim_on reserves memory on a device by its number. It returns 0, or the
// error that the caller of the driver is to get: the claim is void then.
CUresult vg_claim_on(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes);

// vg_claim_unless does so, but where there is no room and `unless` says that none is
// needed any more, it sets *needless and reports no refusal.
CUresult vg_claim_unless(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes,
			 bool (*unless)(struct vg_state *state, CUdevice device), bool *needless);

// vg_claim_current does so on the current context's device.
CUresult vg_claim_current(struct vg_claim *claim, uint32_t way, uint64_t bytes);

// vg_claim_at_once does as vg_claim_on, but neither waits for room nor reports
// that there was none.
CUresult vg_claim_at_once(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes);

// vg_claim_void releases the whole claim.
void vg_claim_void(struct vg_claim *claim);

// vg_claim_refuse releases the claim, and notes and returns a refusal.
CUresult vg_claim_refuse(struct vg_claim *claim, uint64_t bytes);

// vg_claim_resize makes the claim as large as what was really taken. It returns
// false where there is no room for a larger one: then what was taken must be
// freed and the claim refused.
bool vg_claim_resize(struct vg_claim *claim, uint64_t bytes);

// vg_claim_charge charges the claim, as what is of this kind, without filing an entry or
// ending the claim; vg_claim_end ends it.
void vg_claim_charge(struct vg_claim *claim, enum vg_kind kind);
void vg_claim_end(struct vg_claim *claim);

// vg_claim_settle charges the claim and files its entry. `context` is what frees
// it.
void vg_claim_settle(struct vg_claim *claim, enum vg_kind kind, uint64_t key, uint64_t context);

// vg_claim_settle_as files an entry whose `bytes` are not what is charged.
void vg_claim_settle_as(struct vg_claim *claim, enum vg_kind kind, uint64_t key, uint64_t context,
			uint64_t bytes);

// vg_drop releases what an entry was charged with, and frees the entry.
void vg_drop(struct vg_state *state, struct vg_entry *entry);

// vg_context_take takes all entries that end with a context out of the table, itself
// included, before the driver is asked to end it: the driver may give its handle to
// another thread at once. vg_context_keep puts them back, where it lives on;
// vg_context_drop releases them.
struct vg_entry *vg_context_take(struct vg_state *state, CUcontext context);
void vg_context_keep(struct vg_state *state, struct vg_entry *entries);
void vg_context_drop(struct vg_state *state, CUcontext context, struct vg_entry *entries);

// vg_location_device reports whether memory at a location is charged, and stores the device
// that it is charged to. Host memory is not. Locations of unknown type, or of none, count as
// the current device.
bool vg_location_device(const CUmemLocation *location, CUdevice *device);

// vg_current_context is the calling thread's, as a key of the table; 0: none.
uint64_t vg_current_context(void);

static inline uint64_t vg_key(const void *handle)
{
	return (uint64_t)(uintptr_t)handle;
}

// VG_FREE is the body of a function that frees what is filed under a key: the
// entry is taken out first, as the driver may hand the handle out again at
// once, and put back where the driver refuses.
#define VG_FREE(kind, key, call)                                                            \
	do {                                                                                \
		struct vg_state *state_ = vg_ready_state();                                 \
		struct vg_entry *entry_ = vg_free_begin(state_, kind, key);                 \
		CUresult result_ = call;                                                    \
                                                                                            \
		vg_free_finish(state_, entry_, result_);                                    \
		return result_;                                                             \
	} while (0)

struct vg_entry *vg_free_begin(struct vg_state *state, enum vg_kind kind, uint64_t key);
void vg_free_finish(struct vg_state *state, struct vg_entry *entry, CUresult result);

#endif

// SPDX-License-Identifier: Apache-2.0

// This header covers claims: memory reserved for one call of the driver. Every way of allocating
// memory has three steps. The steps are to claim the most that the call can take, to call the
// driver, and to settle or cancel the claim. A claim settles at the amount that the call took.

#ifndef VG_CLAIM_H
#define VG_CLAIM_H

#include "pool_held.h"
#include "state.h"

struct vg_claim {
	struct vg_state *state;
	bool open;              // the driver may be called, and the claim is not over
	struct vg_entry *entry; // filled and put into the table when the claim is settled
	uint32_t device;
	uint32_t way;
	uint64_t bytes;
	uint64_t again;    // part of a context's estimate that is charged already: see correction.h
	struct vg_pool_call call; // set if the call uses a pool
};

// vg_claim_on reserves memory on a device. vg_claim_on returns 0 or the error for the program.
// After an error the claim is void.
CUresult vg_claim_on(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes);

// vg_claim_unless reserves memory like vg_claim_on. The limit may have no room, and `unless` may
// then report that no memory is needed any more. In that case, vg_claim_unless sets *needless and
// does not report a refusal.
CUresult vg_claim_unless(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes,
			 bool (*unless)(struct vg_state *state, CUdevice device), bool *needless);

// vg_claim_current reserves memory like vg_claim_on, on the current context's device.
CUresult vg_claim_current(struct vg_claim *claim, uint32_t way, uint64_t bytes);

// vg_claim_at_once reserves memory like vg_claim_on, but neither waits for room nor reports a
// refusal.
CUresult vg_claim_at_once(struct vg_claim *claim, CUdevice device, uint32_t way, uint64_t bytes);

// vg_claim_void releases the whole claim.
void vg_claim_void(struct vg_claim *claim);

// vg_claim_refuse releases the claim, counts a refusal and returns the error for the program.
CUresult vg_claim_refuse(struct vg_claim *claim, uint64_t bytes);

// vg_claim_resize changes the claim to the amount that the call took. vg_claim_resize returns false
// if the limit has no room for a larger claim. The caller must then free the memory and refuse the
// claim.
bool vg_claim_resize(struct vg_claim *claim, uint64_t bytes);

// vg_claim_charge charges the claim for an object of this kind, without filing an entry or ending
// the claim. vg_claim_end ends the claim.
void vg_claim_charge(struct vg_claim *claim, enum vg_kind kind);
void vg_claim_end(struct vg_claim *claim);

// vg_claim_settle charges the claim and files the claim's entry. The end of `context` frees the
// entry's object.
void vg_claim_settle(struct vg_claim *claim, enum vg_kind kind, uint64_t key, uint64_t context);

// vg_claim_settle_as settles a claim like vg_claim_settle, and files an entry whose `bytes` differ
// from the charge.
void vg_claim_settle_as(struct vg_claim *claim, enum vg_kind kind, uint64_t key, uint64_t context,
			uint64_t bytes);

#endif

// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "audit.h"

#include <time.h>

#include "physical.h"
#include "pool.h"
#include "reserve.h"

// How often a process that allocates looks at what it physically holds. A look
// takes some 100 µs of one call.
static const uint64_t vg_audit_ms = 250;

static const uint64_t vg_audit_bytes = 8 * VG_MIB;

static uint64_t vg_coarse_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// vg_audit_known is what was accounted when the process was looked at, but for what
// is unseen. Of pools it takes what they held then: what they are charged with may
// lag behind. It returns false where a call has begun since, which may have changed
// the account already.
static bool vg_audit_known(struct vg_state *state, uint32_t device, const struct vg_snapshot *then,
			   uint64_t *known)
{
	const struct vg_slot_device *own =
		vg_slot_device(&state->pages, (uint32_t)state->pages.slot, device);
	uint64_t lagging = state->unseen[device];
	uint64_t used;

	// Pools' charges and the account change together, under this mutex.
	vg_lock(&state->pool_mutex);
	for (size_t i = 0; i < vg_max_pools; i++) {
		const struct vg_pool *pool = &state->pools[i];

		if (pool->in_use && !pool->on_host && pool->device == device)
			lagging += pool->charged;
	}
	used = vg_load(&own->used) + then->pools;
	vg_unlock(&state->pool_mutex);
	*known = used > lagging ? used - lagging : 0;
	return atomic_load(&state->calls) == then->calls;
}

// vg_audit_apply charges what the process holds beyond what is accounted.
static void vg_audit_apply(struct vg_state *state, uint32_t device, const struct vg_snapshot *now)
{
	uint64_t physical = vg_snapshot_bytes(now, state->nvml_pid);
	uint64_t known;
	uint64_t unseen;

	if (!vg_audit_known(state, device, now, &known))
		return;
	unseen = physical > known ? physical - known : 0;
	vg_note_unseen(&state->pages, device, state->unseen[device], unseen);
	state->unseen[device] = unseen;
}

static void vg_audit_locked(struct vg_state *state, uint32_t device)
{
	struct vg_snapshot now;

	if (!state->nvml_pid)
		return;
	vg_pools_refresh(state);
	vg_snapshot_take(state, device, &now);
	if (now.valid)
		vg_audit_apply(state, device, &now);
}

void vg_audit(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	uint64_t last = atomic_load_explicit(&state->audited_ms[device], memory_order_relaxed);
	uint64_t now;

	// The clock is not read for each small piece.
	if (bytes < vg_audit_bytes && atomic_load(&state->calls) >> 32 & 7)
		return;
	now = vg_coarse_ms();
	if (now - last < vg_audit_ms ||
	    !atomic_compare_exchange_strong(&state->audited_ms[device], &last, now))
		return;
	// A context or module that is being made is measured by itself.
	if (!vg_try_lock(&state->contexts))
		return;
	vg_audit_locked(state, device);
	vg_unlock(&state->contexts);
}

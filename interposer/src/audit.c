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

// vg_audit_apply charges what the process holds beyond what is accounted.
static void vg_audit_apply(struct vg_state *state, uint32_t device, uint64_t physical)
{
	const struct vg_slot_device *own =
		vg_slot_device(&state->pages, (uint32_t)state->pages.slot, device);
	uint64_t used = vg_load(&own->used);
	uint64_t known = used > state->unseen[device] ? used - state->unseen[device] : 0;
	uint64_t unseen = physical > known ? physical - known : 0;

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
		vg_audit_apply(state, device, vg_snapshot_bytes(&now, state->nvml_pid));
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

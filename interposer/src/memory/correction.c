// SPDX-License-Identifier: Apache-2.0

#include "correction.h"

#include "base/mutex.h"
#include "base/number.h"
#include "pages/reserve.h"

void vg_correction_estimate_made(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	vg_mutex_lock(&state->correction_mutex);
	state->corrections[device].estimated += bytes;
	vg_mutex_unlock(&state->correction_mutex);
	atomic_store(&state->doubtful, 1);
}

void vg_correction_export_kept(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	vg_mutex_lock(&state->correction_mutex);
	state->corrections[device].exports = true;
	vg_mutex_unlock(&state->correction_mutex);
	vg_correction_estimate_made(state, device, bytes);
}

// vg_withdraw removes an estimate, and returns the part of the estimate that reduced the credit.
// The caller releases the rest of the estimate, so that vg_withdraw subtracts the rest from
// `again`.
static uint64_t vg_withdraw(struct vg_correction *correction, uint64_t bytes)
{
	uint64_t withdrawn = vg_min(bytes, correction->credit);

	correction->estimated -= vg_min(bytes, correction->estimated);
	correction->credit -= withdrawn;
	correction->again -= vg_min(bytes - withdrawn, correction->again);
	return withdrawn;
}

uint64_t vg_correction_estimate_gone(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	uint64_t withdrawn;

	vg_mutex_lock(&state->correction_mutex);
	withdrawn = vg_withdraw(&state->corrections[device], bytes);
	vg_mutex_unlock(&state->correction_mutex);
	atomic_store(&state->doubtful, 1);
	return withdrawn;
}

uint64_t vg_correction_withdraw(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	struct vg_correction *correction = &state->corrections[device];
	uint64_t withdrawn;

	vg_mutex_lock(&state->correction_mutex);
	withdrawn = vg_min(bytes, correction->credit);
	correction->credit -= withdrawn;
	vg_mutex_unlock(&state->correction_mutex);
	if (withdrawn)
		atomic_store(&state->doubtful, 1);
	return withdrawn;
}

uint64_t vg_correction_credit(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	uint64_t credit;

	vg_mutex_lock(&state->correction_mutex);
	credit = vg_min(bytes, state->corrections[device].credit);
	vg_mutex_unlock(&state->correction_mutex);
	return credit;
}

void vg_correction_uncertain_made(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	vg_mutex_lock(&state->correction_mutex);
	state->corrections[device].uncertain += bytes;
	vg_mutex_unlock(&state->correction_mutex);
}

void vg_correction_uncertain_gone(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	vg_mutex_lock(&state->correction_mutex);
	state->corrections[device].uncertain -= vg_min(bytes, state->corrections[device].uncertain);
	vg_mutex_unlock(&state->correction_mutex);
}

void vg_correction_doubt(struct vg_state *state, uint32_t device)
{
	struct vg_correction *correction = &state->corrections[device];

	vg_mutex_lock(&state->correction_mutex);
	vg_reserve_adjust(&state->pages, device, 0, correction->credit);
	correction->credit = 0;
	correction->again = 0;
	correction->doubted = true;
	vg_mutex_unlock(&state->correction_mutex);
}

uint64_t vg_correction_context_again(struct vg_state *state, uint32_t device, uint64_t bytes)
{
	struct vg_correction *correction = &state->corrections[device];
	uint64_t again;

	vg_mutex_lock(&state->correction_mutex);
	again = vg_min(bytes, correction->again);
	correction->again -= again;
	correction->estimated += again;
	correction->credit += again;
	vg_mutex_unlock(&state->correction_mutex);
	return again;
}

void vg_correction_context_failed(struct vg_state *state, uint32_t device, uint64_t again)
{
	struct vg_correction *correction = &state->corrections[device];
	uint64_t withdrawn;

	vg_mutex_lock(&state->correction_mutex);
	withdrawn = vg_withdraw(correction, again);
	if (!correction->contexts && correction->again < withdrawn)
		correction->again = withdrawn;
	vg_mutex_unlock(&state->correction_mutex);
	vg_reserve_release(&state->pages, device, again - withdrawn);
}

void vg_correction_context_began(struct vg_state *state, uint32_t device)
{
	vg_mutex_lock(&state->correction_mutex);
	state->corrections[device].contexts++;
	atomic_fetch_add(&state->contexts, 1);
	vg_mutex_unlock(&state->correction_mutex);
}

uint64_t vg_correction_context_ended(struct vg_state *state, uint32_t device, uint64_t bytes, bool whole)
{
	struct vg_correction *correction = &state->corrections[device];
	uint64_t withdrawn;

	vg_mutex_lock(&state->correction_mutex);
	withdrawn = vg_withdraw(correction, bytes);
	if (correction->contexts)
		correction->contexts--;
	if (!correction->contexts) {
		vg_reserve_adjust(&state->pages, device, correction->unseen, 0);
		correction->unseen = 0;
		correction->again = whole && correction->estimated ? withdrawn : 0;
		correction->doubted = false;
	}
	vg_mutex_unlock(&state->correction_mutex);
	atomic_store(&state->doubtful, 1);
	return withdrawn;
}

bool vg_correction_export_outlives(struct vg_state *state)
{
	bool outlives = false;

	vg_mutex_lock(&state->correction_mutex);
	for (uint32_t i = 0; i < state->pages.device_count; i++)
		outlives |= state->corrections[i].exports && state->corrections[i].contexts == 1;
	vg_mutex_unlock(&state->correction_mutex);
	return outlives;
}

// vg_known returns the charges for the calls of this process. `pools` is the memory that the pools
// held during the measurement, because the charge of a pool may lag behind. The caller holds
// pool_mutex, under which the pools' charges and the sum change together.
static uint64_t vg_known(const struct vg_state *state, uint32_t device, uint64_t pools)
{
	const struct vg_correction *correction = &state->corrections[device];
	uint64_t known = vg_add_saturating(atomic_load(&state->pages.own[device]), correction->credit);
	uint64_t other = correction->unseen;

	for (uint32_t i = 0; i < state->pools_end; i++) {
		const struct vg_pool *pool = &state->pools[i];

		if (pool->in_use && !pool->on_host && pool->device == device)
			other += pool->charged;
	}
	return vg_add_saturating(known - vg_min(known, other), pools);
}

// vg_credit returns the part of an excess charge that is credited.
static uint64_t vg_credit(const struct vg_correction *correction, uint64_t excess)
{
	if (correction->doubted)
		return 0;
	return vg_min(excess - vg_min(excess, correction->uncertain), correction->estimated);
}

bool vg_correction_apply(struct vg_state *state, uint32_t device, const struct vg_measured *measured)
{
	struct vg_correction *correction = &state->corrections[device];
	struct vg_correction next;
	bool undisturbed;
	uint64_t known;

	vg_mutex_lock(&state->pool_mutex);
	vg_mutex_lock(&state->correction_mutex);
	known = vg_known(state, device, measured->pools);
	next = *correction;
	next.again = 0;
	next.unseen = measured->physical - vg_min(measured->physical, known);
	next.credit = vg_credit(correction, known - vg_min(measured->physical, known));
	// The counter must be read last, because each call increases the counter before the call
	// changes any of the values above.
	undisturbed = atomic_load(&state->calls) == measured->calls;
	if (undisturbed) {
		vg_reserve_adjust(&state->pages, device, vg_add_saturating(correction->unseen, next.credit),
				  vg_add_saturating(next.unseen, correction->credit));
		*correction = next;
	}
	vg_mutex_unlock(&state->correction_mutex);
	vg_mutex_unlock(&state->pool_mutex);
	return undisturbed;
}

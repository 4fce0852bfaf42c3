// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "audit.h"

#include <string.h>
#include <time.h>

#include "base/mutex.h"
#include "base/now.h"
#include "base/number.h"
#include "base/thread.h"
#include "correction.h"
#include "pages/held.h"
#include "pool_held.h"

enum {
	vg_audit_ms = 250,         // least time between two queries of a process that allocates
	vg_silence_ms = 100,       // backoff after the first query without an answer
	vg_most_silence_ms = 2000, // limit of the backoff, which doubles each time
};

static const uint64_t vg_audit_bytes = 8 * VG_MIB;

// vg_queue_ns is the longest time for which a thread waits for another thread's query before a
// refusal.
static const uint64_t vg_queue_ns = 20000000;

static uint64_t vg_coarse_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

// vg_pools_at is the memory that the pools of each GPU hold. `known` is false if a pool could not
// be queried.
struct vg_pools_at {
	uint64_t held[VG_MAX_DEVICES];
	bool known[VG_MAX_DEVICES];
};

static void vg_pools_ask(struct vg_state *state, struct vg_pools_at *pools)
{
	for (uint32_t i = 0; i < state->pages.device_count; i++)
		pools->known[i] = vg_pool_held_sum(state, i, &pools->held[i]);
}

// vg_applied counts the GPUs whose charge was corrected, and the GPUs whose charge could not be
// corrected.
struct vg_applied {
	uint32_t corrected;
	uint32_t missed;
};

static struct vg_applied vg_apply(struct vg_state *state, const struct vg_held *held, uint64_t calls,
				  const struct vg_pools_at *before, const struct vg_pools_at *after)
{
	struct vg_applied applied = {0, 0};

	// The count must change before any charge changes (use.h).
	atomic_fetch_add(&state->measurements, 1);
	for (uint32_t i = 0; i < held->count; i++) {
		int device = vg_pages_find(&state->pages, held->gpus[i].uuid);
		struct vg_measured measured = {.calls = calls, .physical = held->gpus[i].bytes};

		if (device < 0)
			continue;
		measured.pools = before->held[device];
		if (before->known[device] && after->known[device] &&
		    before->held[device] == after->held[device] &&
		    vg_correction_apply(state, (uint32_t)device, &measured))
			applied.corrected++;
		else
			applied.missed++;
	}
	return applied;
}

static void vg_note_silence(struct vg_state *state, enum vg_held_result result)
{
	uint64_t longer = vg_min(2 * state->silence_ms, vg_most_silence_ms);

	if (result == VG_HELD_ANSWERED)
		state->silence_ms = 0;
	if (result != VG_HELD_SILENT)
		return;
	state->silence_ms = longer ? longer : vg_silence_ms;
	atomic_store(&state->silent_until_ms, vg_coarse_ms() + state->silence_ms);
}

// vg_look queries the agent and applies the answer. The caller holds audit_mutex.
static void vg_look(struct vg_state *state)
{
	uint64_t calls = atomic_load(&state->calls);
	uint32_t doubtful = atomic_exchange(&state->doubtful, 0);
	struct vg_pools_at before;
	struct vg_pools_at after;
	enum vg_held_result result = VG_HELD_NOBODY;
	struct vg_held held;
	struct vg_applied applied = {0, 1};

	atomic_store(&state->asked_ms, vg_coarse_ms());
	if ((uint32_t)calls == 0) {
		vg_pool_held_refresh(state);
		vg_pools_ask(state, &before);
		result = vg_held_ask(state->agent, (uint32_t)state->pages.slot, &held);
		vg_pools_ask(state, &after);
		if (result == VG_HELD_ANSWERED)
			applied = vg_apply(state, &held, calls, &before, &after);
	}
	vg_note_silence(state, result);
	if (applied.corrected)
		atomic_fetch_add(&state->corrections_made, 1);
	if (applied.missed && doubtful)
		atomic_store(&state->doubtful, 1);
}

static bool vg_is_time(const struct vg_state *state, uint64_t now)
{
	uint64_t asked = atomic_load_explicit(&state->asked_ms, memory_order_relaxed);
	uint64_t silent_until = atomic_load_explicit(&state->silent_until_ms, memory_order_relaxed);

	// If silent_until is after the last query, that query had no answer, and may be repeated
	// after the backoff.
	return now >= silent_until && (silent_until > asked || now - asked >= vg_audit_ms);
}

void vg_audit_start(struct vg_state *state)
{
	atomic_store(&state->asked_ms, vg_coarse_ms());
}

static void vg_audit_now(struct vg_state *state)
{
	int kept;

	if (!vg_is_time(state, vg_coarse_ms()) || !vg_mutex_try_lock(&state->audit_mutex))
		return;
	kept = vg_thread_keep();
	if (vg_is_time(state, vg_coarse_ms()))
		vg_look(state);
	vg_mutex_unlock(&state->audit_mutex);
	vg_thread_let(kept);
}

void vg_audit(struct vg_state *state, uint64_t bytes)
{
	// Only one of eight small allocations reads the clock.
	if (bytes >= vg_audit_bytes || !(atomic_load(&state->calls) >> 32 & 7))
		vg_audit_now(state);
}

void vg_audit_doubt(struct vg_state *state)
{
	if (atomic_load_explicit(&state->doubtful, memory_order_relaxed))
		vg_audit_now(state);
}

// vg_queue waits for audit_mutex for at most vg_queue_ns, and reports whether it locked
// audit_mutex.
static bool vg_queue(struct vg_state *state)
{
	const struct timespec nap = {.tv_nsec = 200000};
	uint64_t end = vg_now() + vg_queue_ns;

	while (!vg_mutex_try_lock(&state->audit_mutex)) {
		if (vg_now() > end)
			return false;
		nanosleep(&nap, NULL);
	}
	return true;
}

// vg_await_calls waits 2 ms at most for the calls in progress in other threads.
static void vg_await_calls(const struct vg_state *state)
{
	const struct timespec nap = {.tv_nsec = 100000};

	for (int i = 0; i < 20 && (uint32_t)atomic_load(&state->calls); i++)
		nanosleep(&nap, NULL);
}

bool vg_audit_refusal(struct vg_state *state)
{
	uint32_t answers = atomic_load(&state->corrections_made);
	uint64_t now = vg_coarse_ms();
	int kept;

	if (now < atomic_load(&state->silent_until_ms) ||
	    (!atomic_load(&state->doubtful) && !vg_is_time(state, now)))
		return false;
	kept = vg_thread_keep();
	if (!vg_queue(state)) {
		vg_thread_let(kept);
		return false;
	}
	vg_await_calls(state);
	// Another thread may have queried the agent meanwhile, with or without an answer.
	if (answers == atomic_load(&state->corrections_made) &&
	    vg_coarse_ms() >= atomic_load(&state->silent_until_ms))
		vg_look(state);
	vg_mutex_unlock(&state->audit_mutex);
	vg_thread_let(kept);
	return answers != atomic_load(&state->corrections_made);
}

void vg_audit_last(struct vg_state *state)
{
	if (vg_correction_export_outlives(state))
		(void)vg_audit_refusal(state);
}

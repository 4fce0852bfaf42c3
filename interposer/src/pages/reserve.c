// SPDX-License-Identifier: Apache-2.0

// A reservation takes no lock, so that a killed process cannot leave a lock behind. Each process
// has two counters for each GPU, which only that process increases: `pending` and `used`. To
// reserve memory, a process
//
//   1. adds the bytes to its `pending` (publishes the reservation);
//   2. sums `pending` and `used` over all slots;
//   3. holds the bytes and calls the driver if the sum is within the limit; if the sum exceeds the
//      limit, subtracts the bytes from `pending`, and has no grant (yet);
//   4. after the driver's call, adds the bytes that the call took to `used`, and then subtracts all
//      reserved bytes from `pending`. The call never takes more than the reserved bytes.
//
// No grant exceeds the limit. A reader adds a slot's `pending` before its `used`, and a grant adds
// to `used` before it subtracts from `pending`. A reader may count bytes twice that move from one
// counter to the other, but never misses these bytes. All accesses are sequentially consistent.
// Consider all grants in force at some moment, and the grant that was published last. When the
// process of the last grant summed, all other grants were published and therefore in its sum. The
// sum was within the limit. Bytes are released only after the driver has freed the memory.
//
// No reservation is refused within the limit. A sum that is too large only because of pending bytes
// refuses nothing. When the pending calls of the driver return, the pending bytes become used, or
// some are released, as for an overestimated context. The slow path waits for these calls. If two
// processes wait for each other, their slots decide. The process with the higher slot subtracts its
// bytes and retries, the process with the lower slot keeps its bytes and re-checks. Waiting threads
// of a process queue at a mutex. Therefore a refusal is correct: after the slots of dead processes
// have been emptied, the *used* bytes leave no room. The slow path waits for a process that is
// exiting. If no sum changes for vg_patience_ns, because a process is stopped or the driver waits,
// pending bytes count as used. For later threads, the pending bytes count as used at once.
//
// Every process of the container can write the page, and thus make other processes' use look
// smaller than it is. Each process therefore also keeps its own grants in private memory. The agent
// records the memory that all processes hold according to the driver, if that memory exceeds the
// sum on the page (vg_usage_floor).
//
// A process that is killed between any two steps leaves bytes in its slot. The next process that
// finds too little room empties the slot, whose lock the kernel has dropped (slot.c).

#define _GNU_SOURCE
#include "reserve.h"

#include <time.h>

#include "base/mutex.h"
#include "base/now.h"
#include "base/number.h"
#include "base/thread.h"
#include "limits.h"
#include "slot.h"
#include "usage.h"

static const uint64_t vg_patience_ns = 1000000000;
static const uint64_t vg_longest_wait_ns = UINT64_C(30000000000);
static const long vg_nap_ns = 50000;

struct vg_reserved {
	uint64_t used;
	uint64_t pending;
	uint64_t pending_below; // in slots below the slot of this process
};

static struct vg_reserved vg_sum_up(struct vg_pages *pages, uint32_t device)
{
	uint32_t slots = vg_slots_in_use(pages);
	struct vg_reserved sum = {0, 0, 0};

	for (uint32_t i = 0; i < slots; i++) {
		const struct vg_slot_device *slot = vg_slot_device(pages, i, device);
		uint64_t pending = vg_load(&slot->pending); // `pending` is read before `used`: see above
		uint64_t used = vg_slot_used(pages, i, device);

		sum.pending = vg_add_saturating(sum.pending, pending);
		sum.used = vg_add_saturating(sum.used, used);
		if ((int)i < pages->slot)
			sum.pending_below = sum.pending;
	}
	sum.used = vg_max(sum.used, vg_usage_floor(pages, device));
	return sum;
}

static struct vg_slot_device *vg_own(const struct vg_pages *pages, uint32_t device)
{
	return vg_slot_device(pages, (uint32_t)pages->slot, device);
}

// vg_fits reports whether the sum is within the limit. vg_fits counts at least `bytes` as pending,
// because another process may have overwritten this process's `pending`.
static bool vg_fits(const struct vg_reserved *sum, uint64_t bytes, uint64_t limit)
{
	return vg_add_saturating(sum->used, vg_max(sum->pending, bytes)) <= limit;
}

static void vg_raise(uint64_t *field, uint64_t value)
{
	uint64_t old = vg_load(field);

	while (old < value && !__atomic_compare_exchange_n(field, &old, value, true,
							   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		continue;
}

// vg_note_peak updates the peaks of this process and of the container. vg_note_peak does not read
// all slots at the same moment, and may count bytes twice that move from one process to another.
// Therefore `most` bounds the container's peak.
static void vg_note_peak(struct vg_pages *pages, uint32_t device, uint64_t most)
{
	struct vg_slot_device *own = vg_own(pages, device);
	uint64_t all = vg_usage_memory(pages, device);

	vg_raise(&own->peak, vg_load(&own->used));
	vg_raise(&pages->usage->header.devices[device].peak, vg_min(all, most));
}

static void vg_own_sub(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	uint64_t own = atomic_load(&pages->own[device]);

	while (!atomic_compare_exchange_weak(&pages->own[device], &own, own - vg_min(own, bytes)))
		continue;
}

static void vg_nap(void)
{
	struct timespec nap = {.tv_nsec = vg_nap_ns};

	nanosleep(&nap, NULL);
}

// vg_wait is the state of a waiting thread.
struct vg_wait {
	uint64_t since;
	uint64_t moved;
	uint64_t others; // used and pending bytes, without the waiting call's bytes
};

// vg_wait_is_over reports whether to stop waiting. After a thread's wait for a change of a sum has
// timed out, no thread waits for that sum for vg_longest_wait_ns. A change of the sum ends this
// time.
static bool vg_wait_is_over(struct vg_wait *wait, const struct vg_reserved *sum, uint64_t own, struct vg_stuck *stuck)
{
	uint64_t others = sum->used + sum->pending - own;
	uint64_t now = vg_now();

	if (others == stuck->bytes && now < stuck->until)
		return true;
	if (others != wait->others)
		wait->moved = now;
	wait->others = others;
	if (now - wait->moved <= vg_patience_ns)
		return now - wait->since > vg_longest_wait_ns;
	*stuck = (struct vg_stuck){others, now + vg_longest_wait_ns};
	return true;
}

// vg_reserve_hold_slowly waits for room after a first attempt found too little room, and reports
// whether it reserved the bytes.
static bool vg_reserve_hold_slowly(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	struct vg_slot_device *own = vg_own(pages, device);
	struct vg_wait wait = {.since = vg_now(), .moved = vg_now()};
	bool published = false;

	for (;;) {
		bool gone = vg_slots_reap(pages, device);
		struct vg_reserved sum;
		uint64_t limit;

		if (!published)
			vg_add(&own->pending, bytes);
		published = true;
		limit = vg_limits_memory(pages, device); // after `pending`: see vg_reserve_hold_at_once
		sum = vg_sum_up(pages, device);
		if (vg_fits(&sum, bytes, limit)) {
			pages->stuck[device].until = 0;
			return true;
		}
		if ((gone && vg_add_saturating(sum.used, bytes) > limit) ||
		    vg_wait_is_over(&wait, &sum, bytes, &pages->stuck[device])) {
			vg_sub(&own->pending, bytes);
			return false;
		}
		if (sum.pending_below) {
			vg_sub(&own->pending, bytes);
			published = false;
		}
		vg_nap();
	}
}

bool vg_reserve_hold_at_once(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	struct vg_slot_device *own = vg_own(pages, device);
	struct vg_reserved sum;
	uint64_t limit;

	if (bytes > vg_limits_memory(pages, device))
		return false;
	vg_add(&own->pending, bytes);
	// The agent lowers the limit and then reads `pending`. Either the agent finds these bytes, or this
	// process finds the lower limit.
	limit = vg_limits_memory(pages, device);
	sum = vg_sum_up(pages, device);
	if (vg_fits(&sum, bytes, limit))
		return true;
	vg_sub(&own->pending, bytes);
	return false;
}

bool vg_reserve_hold(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	bool held;
	int kept;

	if (vg_reserve_hold_at_once(pages, device, bytes))
		return true;
	if (bytes > vg_limits_memory(pages, device))
		return false;
	kept = vg_thread_keep();
	vg_mutex_lock(&pages->slow[device]);
	held = vg_reserve_hold_slowly(pages, device, bytes);
	vg_mutex_unlock(&pages->slow[device]);
	vg_thread_let(kept);
	return held;
}

void vg_reserve_settle(struct vg_pages *pages, uint32_t device, uint64_t held, uint64_t taken)
{
	struct vg_slot_device *own = vg_own(pages, device);

	if (taken) {
		vg_add(&own->used, taken);
		atomic_fetch_add(&pages->own[device], taken);
		vg_note_peak(pages, device, vg_limits_memory(pages, device));
	}
	if (held)
		vg_sub(&own->pending, held);
}

void vg_reserve_release(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	if (!bytes)
		return;
	vg_own_sub(pages, device, bytes);
	vg_sub(&vg_own(pages, device)->used, bytes);
}

// vg_shift adds the difference of `now` and `before` to a counter.
static uint64_t vg_shift(uint64_t counter, uint64_t before, uint64_t now)
{
	if (now >= before)
		return vg_add_saturating(counter, now - before);
	return counter - vg_min(counter, before - now);
}

void vg_reserve_adjust(struct vg_pages *pages, uint32_t device, uint64_t before, uint64_t now)
{
	struct vg_slot_device *own = vg_own(pages, device);
	uint64_t had = atomic_load(&pages->own[device]);

	// A correction does not change the memory that the agent has observed, and therefore
	// changes own_then as well.
	vg_mutex_lock(&pages->look);
	while (!atomic_compare_exchange_weak(&pages->own[device], &had, vg_shift(had, before, now)))
		continue;
	pages->own_then[device] = vg_shift(pages->own_then[device], before, now);
	vg_mutex_unlock(&pages->look);
	if (now > before) {
		vg_add(&own->used, now - before);
		vg_note_peak(pages, device, UINT64_MAX);
	} else if (now < before) {
		vg_sub(&own->used, before - now);
	}
}

void vg_reserve_refused(struct vg_pages *pages, uint32_t device, uint32_t way, uint64_t bytes)
{
	uint64_t largest = (UINT64_C(1) << VG_REFUSAL_SIZE_BITS) - 1;
	uint64_t packed = (uint64_t)way << VG_REFUSAL_SIZE_BITS | vg_min(bytes, largest);
	struct vg_slot_device *own = vg_own(pages, device);
	struct vg_usage_header *header = &pages->usage->header;
	struct vg_container_device *container = &header->devices[device];

	// The count by way is increased first, so that the count never lags behind the sum.
	if (way < VG_WAY_COUNT)
		vg_add(&header->refusals[device].counts[way], 1);
	vg_add(&own->refusals, 1);
	vg_store(&own->last_refusal, packed);
	vg_add(&container->refusals, 1);
	vg_store(&container->last_refusal, packed);
}

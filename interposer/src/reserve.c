// SPDX-License-Identifier: Apache-2.0

// How a reservation is made without a lock, so that nothing can be left behind
// by a kill. Each process has, per GPU, two counters that it alone adds to:
// `pending` and `used`. To reserve, it
//
//   1. adds the bytes to its `pending` (publishes them);
//   2. sums `pending` and `used` over all slots;
//   3. if the sum is within the limit, adds the bytes to `used`, and then takes
//      them from `pending`; if not, takes them from `pending` and is not (yet)
//      granted.
//
// No over-grant. A reader adds a slot's `pending` before its `used`, and a
// grant adds to `used` before it takes from `pending`: so bytes on their way
// from one to the other may be counted twice, but are never missed. All
// accesses are sequentially consistent. Take all grants that stand at some
// moment, and of these the one that was published last: when it summed, every
// other one was published already and so was in its sum, and the sum was
// within the limit. (Bytes are released only after the driver has freed them.)
//
// No false refusal. A sum that is too large only because others are pending is
// no refusal: their bytes become used or vanish within nanoseconds. The slow
// path waits for that. Two that wait for each other are told apart by their
// slots: the higher one takes its bytes back and tries again, the lower one
// leaves them and looks again. Within a process, waiting threads queue at a
// mutex. So a refusal is true: the bytes *used* leave no room, after the slots
// of dead processes have been emptied. A process that is stopped in step 3 is
// waited for as long as vg_patience_ns and then counted as if granted.
//
// Nothing to leave behind. A process killed between any two steps leaves bytes
// in its slot, which is emptied by whoever finds too little room, as the lock
// on it has gone (slot.c).

#define _GNU_SOURCE
#include "reserve.h"

#include <time.h>

#include "slot.h"

static const uint64_t vg_patience_ns = 1000000000;
static const long vg_nap_ns = 50000;

struct vg_sum {
	uint64_t used;
	uint64_t pending;
	uint64_t pending_below; // in slots that go before this process's
};

static struct vg_sum vg_sum_up(const struct vg_pages *pages, uint32_t device)
{
	uint32_t slots = vg_slots_in_use(pages);
	struct vg_sum sum = {0, 0, 0};

	for (uint32_t i = 0; i < slots; i++) {
		const struct vg_slot_device *slot = vg_slot_device(pages, i, device);
		uint64_t pending = vg_load(&slot->pending); // first: see above
		uint64_t used = vg_load(&slot->used);

		sum.pending = vg_add_saturating(sum.pending, pending);
		sum.used = vg_add_saturating(sum.used, used);
		if ((int)i < pages->slot)
			sum.pending_below = sum.pending;
	}
	return sum;
}

static struct vg_slot_device *vg_own(const struct vg_pages *pages, uint32_t device)
{
	return vg_slot_device(pages, (uint32_t)pages->slot, device);
}

static void vg_note_peak(struct vg_slot_device *own)
{
	uint64_t used = vg_load(&own->used);
	uint64_t peak = vg_load(&own->peak);

	while (peak < used && !__atomic_compare_exchange_n(&own->peak, &peak, used, true,
							   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		continue;
}

static void vg_grant(struct vg_slot_device *own, uint64_t bytes)
{
	vg_add(&own->used, bytes);
	vg_sub(&own->pending, bytes);
	vg_note_peak(own);
}

static void vg_nap(void)
{
	struct timespec nap = {.tv_nsec = vg_nap_ns};

	nanosleep(&nap, NULL);
}

// vg_reserve_slowly decides after a first try found too little room.
static bool vg_reserve_slowly(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	struct vg_slot_device *own = vg_own(pages, device);
	uint64_t give_up = vg_now() + vg_patience_ns;
	bool published = false;

	for (;;) {
		uint64_t limit = vg_memory_limit(pages, device);
		struct vg_sum sum;

		vg_slots_reap(pages, device);
		if (!published)
			vg_add(&own->pending, bytes);
		published = true;
		sum = vg_sum_up(pages, device);
		if (vg_add_saturating(sum.used, sum.pending) <= limit) {
			vg_grant(own, bytes);
			return true;
		}
		if (vg_add_saturating(sum.used, bytes) > limit || vg_now() > give_up) {
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

bool vg_reserve(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	struct vg_slot_device *own = vg_own(pages, device);
	uint64_t limit = vg_memory_limit(pages, device);
	struct vg_sum sum;
	bool granted;

	if (bytes > limit)
		return false;
	vg_add(&own->pending, bytes);
	sum = vg_sum_up(pages, device);
	if (vg_add_saturating(sum.used, sum.pending) <= limit) {
		vg_grant(own, bytes);
		return true;
	}
	vg_sub(&own->pending, bytes);
	vg_lock(&pages->slow);
	granted = vg_reserve_slowly(pages, device, bytes);
	vg_unlock(&pages->slow);
	return granted;
}

void vg_release(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	vg_sub(&vg_own(pages, device)->used, bytes);
}

void vg_force(struct vg_pages *pages, uint32_t device, uint64_t bytes)
{
	struct vg_slot_device *own = vg_own(pages, device);

	vg_add(&own->used, bytes);
	vg_note_peak(own);
}

void vg_refused(struct vg_pages *pages, uint32_t device, uint32_t way, uint64_t bytes)
{
	uint64_t largest = (UINT64_C(1) << VG_REFUSAL_SIZE_BITS) - 1;
	uint64_t packed = (uint64_t)way << VG_REFUSAL_SIZE_BITS | vg_min(bytes, largest);
	struct vg_slot_device *own = vg_own(pages, device);
	struct vg_container_device *container = &pages->usage->header.devices[device];

	vg_add(&own->refusals, 1);
	vg_store(&own->last_refusal, packed);
	vg_add(&container->refusals, 1);
	vg_store(&container->last_refusal, packed);
}

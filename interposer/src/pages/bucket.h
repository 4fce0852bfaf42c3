// SPDX-License-Identifier: Apache-2.0

// This header covers the container's allowance of one GPU's time: a token bucket on the usage page.
// All processes of the container share the bucket. A process refills the bucket when the process
// needs allowance. Work that took longer than estimated puts the bucket into debt.
//
// The bucket needs no lock. A process killed between the two steps of a refill loses only the few
// microseconds of allowance that it was about to add.

#ifndef VG_BUCKET_H
#define VG_BUCKET_H

#include "limits.h"
#include "pages.h"

enum {
	// allowance that a container may save while it launches nothing, and has at the start, in ns
	vg_bucket_idle_cap = 8000000,
	// allowance that a container may save while its work waits for a busy GPU, in ns
	vg_bucket_busy_cap = 40000000,
	// vg_bucket_lent_cap is the lent time that a container may save, in ns. The cap is small,
	// because the time's owner may need the time again.
	vg_bucket_lent_cap = 2000000,
	// longest time between two looks at a bucket that a launch waits for, in ns
	vg_bucket_look_ns = 20000000,
};

// vg_bucket_fill adds the allowance since the last refill at `ppm`, up to `cap` ns, and the
// allowance of a lease beyond `ppm`. vg_bucket_fill returns the balance in ns. `now` is a time of
// CLOCK_MONOTONIC.
int64_t vg_bucket_fill(struct vg_container_device *device, uint64_t now, uint32_t ppm,
		       int64_t cap, struct vg_lease lease);

// vg_bucket_peek returns the balance, in ns, that a refill at `ppm` would find now.
int64_t vg_bucket_peek(const struct vg_container_device *device, uint64_t now, uint32_t ppm);

// vg_bucket_rate returns the rate at which a bucket fills at `now`, in parts per million.
uint32_t vg_bucket_rate(uint32_t ppm, struct vg_lease lease, uint64_t now);

// vg_bucket_target returns the allowance that a launch waits for after it has found the bucket empty,
// in ns. Many short launches share one sleep.
int64_t vg_bucket_target(uint32_t ppm);

// vg_bucket_charge takes GPU time from the bucket. A negative amount is a refund.
void vg_bucket_charge(struct vg_container_device *device, int64_t ns);

// vg_bucket_delay returns the time in which the bucket fills from `balance` to `target` at this
// rate, in ns.
uint64_t vg_bucket_delay(int64_t balance, int64_t target, uint32_t ppm);

#endif

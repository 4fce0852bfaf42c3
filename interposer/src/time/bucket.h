// SPDX-License-Identifier: Apache-2.0

// The container's allowance of one GPU's time: a token bucket on the usage
// page, shared by all processes of the container and refilled by whoever comes.
// It goes into debt for work that took longer than was thought.
//
// No lock: who dies between the two steps of a refill loses the few
// microseconds of allowance that it was about to add, and nothing else.

#ifndef VG_BUCKET_H
#define VG_BUCKET_H

#include "pages.h"

enum {
	// What a container may have saved up while it asked for nothing, in ns.
	vg_bucket_idle_cap = 8000000,
	// What it may claim later while it had work waiting for the GPU, which
	// others held.
	vg_bucket_busy_cap = 40000000,
	// What it may have saved up of time that was lent to it: lent time is for
	// use at once, as its owner may want it back.
	vg_bucket_lent_cap = 2000000,
	// What it starts with.
	vg_bucket_start = 4000000,
};

// vg_bucket_fill adds the allowance since the last refill at `ppm`, up to `cap` ns, and
// what a lease allows beyond `ppm`. It returns the balance in ns. `now` is CLOCK_MONOTONIC.
int64_t vg_bucket_fill(struct vg_container_device *device, uint64_t now, uint32_t ppm,
		       int64_t cap, struct vg_lease lease);

// vg_bucket_peek is the balance that a refill at `ppm` would find now.
int64_t vg_bucket_peek(const struct vg_container_device *device, uint64_t now, uint32_t ppm);

// vg_bucket_rate is the rate at which a bucket fills at `now`, in parts per million.
uint32_t vg_bucket_rate(uint32_t ppm, struct vg_lease lease, uint64_t now);

// vg_bucket_charge takes GPU time from the bucket; a negative amount gives back.
void vg_bucket_charge(struct vg_container_device *device, int64_t ns);

// vg_bucket_return gives back what work of `ns` that was charged afterwards would have left
// room for, had it been charged when it was launched: what the bucket could not hold since
// its clipped_ns was `since`, as far as no other work had it back.
void vg_bucket_return(struct vg_container_device *device, int64_t ns, uint64_t since);

// vg_bucket_delay is how long, in ns, the bucket takes from `balance` to
// `target` at this rate.
uint64_t vg_bucket_delay(int64_t balance, int64_t target, uint32_t ppm);

#endif

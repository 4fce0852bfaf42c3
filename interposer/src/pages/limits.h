// SPDX-License-Identifier: Apache-2.0

// This header covers the limits page, which the container can only read.

#ifndef VG_LIMITS_H
#define VG_LIMITS_H

#include "base/error.h"
#include "pages.h"

// vg_limits_open opens, checks and maps the limits page of a directory. vg_limits_open returns 0,
// or -1 with `error` set. vg_slot_take or vg_slot_map maps the usage page.
int vg_limits_open(struct vg_pages *pages, const char *dir, struct vg_error *error);

// vg_limits_memory returns the memory limit in force, in bytes. The limit is 0 if the page has
// become corrupt.
uint64_t vg_limits_memory(struct vg_pages *pages, uint32_t device);

// vg_limits_context returns the expected size of a context in bytes, or 0 if the page does not
// state the size.
uint64_t vg_limits_context(struct vg_pages *pages, uint32_t device);

// vg_limits_follow reads the limits again after a change. vg_limits_look calls vg_limits_follow if
// the limits have changed.
void vg_limits_follow(struct vg_pages *pages);

static inline void vg_limits_look(struct vg_pages *pages)
{
	uint64_t generation = __atomic_load_n(&pages->limits->generation, __ATOMIC_RELAXED);

	if (__builtin_expect(generation + 1 != atomic_load_explicit(&pages->verified,
								    memory_order_relaxed), 0))
		vg_limits_follow(pages);
}

// vg_limits_compute returns the part of the GPU's time that is currently allowed, in parts per
// million. VG_PPM means no limit. The result is never 0, because a program whose work waits forever
// would hold its locks forever.
static inline uint32_t vg_limits_compute(struct vg_pages *pages, uint32_t device)
{
	vg_limits_look(pages);
	return atomic_load_explicit(&pages->compute[device], memory_order_relaxed);
}

// vg_lease is a part of the GPU's time, in parts per million, that the container may use until
// `until`, a vg_now time. Without a lease, both fields are 0.
struct vg_lease {
	uint32_t ppm;
	uint64_t until;
};

// vg_limits_lease returns the part of the GPU's time that the container may currently use beyond
// its own part. Other containers do not use this part.
struct vg_lease vg_limits_lease(const struct vg_pages *pages, uint32_t device);

// vg_limits_throttled reports whether any GPU currently has a compute limit. Without limits
// vg_limits_throttled costs one load and a comparison.
static inline bool vg_limits_throttled(struct vg_pages *pages)
{
	vg_limits_look(pages);
	return atomic_load_explicit(&pages->throttled, memory_order_relaxed);
}

#endif

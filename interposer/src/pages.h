// SPDX-License-Identifier: Apache-2.0

// The container's two pages: the limits, which are only read, and the usage,
// which all processes of the container share and may be written by anybody in
// it. Their layout is declared in pkg/limits/internal/layout.

#ifndef VG_PAGES_H
#define VG_PAGES_H

#include <limits.h>

#include "base.h"
#include "pages_gen.h"

// vg_error describes on one line what failed and what to do. Longer text is cut.
struct vg_error {
	char text[512];
};

void vg_error_set(struct vg_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

enum { vg_no_slot = -1 };

// vg_stuck is what others had used or pending, and did not move while a thread waited for room.
struct vg_stuck {
	uint64_t bytes;
	uint64_t until; // when it is waited for again, as vg_now
};

struct vg_pages {
	const struct vg_limits_page *limits;
	struct vg_usage_page *usage;
	uint32_t device_count;
	int slot; // this process's, or vg_no_slot
	uint8_t uuids[VG_MAX_DEVICES][16];
	// What the active copy of the limits says, as far as it was verified.
	struct vg_mutex verify;
	_Atomic uint64_t verified; // its generation, plus one
	_Atomic uint64_t memory[VG_MAX_DEVICES];
	_Atomic uint64_t context[VG_MAX_DEVICES];
	_Atomic uint32_t compute[VG_MAX_DEVICES]; // parts per million of the GPU's time
	_Atomic bool shares[VG_MAX_DEVICES];      // the part is a guarantee: see vg_compute_lease
	_Atomic bool throttled;                   // some GPU has a compute limit
	// Of GPUs that are shared through the Multi-Process Service: the part that the
	// container may fill, in parts per million, and how many SMs the whole has.
	_Atomic uint32_t mps[VG_MAX_DEVICES]; // 0: not so shared
	_Atomic uint32_t sms[VG_MAX_DEVICES]; // 0: unknown
	// By GPU: threads of this process that must wait, wait here one behind another.
	struct vg_mutex slow[VG_MAX_DEVICES];
	struct vg_stuck stuck[VG_MAX_DEVICES]; // guarded by slow
	// What this process is charged with, where no other can write it.
	_Atomic uint64_t own[VG_MAX_DEVICES];
	// The agent's last look, as this process has seen it, and `own` at that time.
	struct vg_mutex look;
	uint64_t looked[VG_MAX_DEVICES];
	uint64_t own_then[VG_MAX_DEVICES];
	char usage_path[PATH_MAX];
	uint64_t usage_inode;
	uint64_t usage_device;
};

// vg_pages_dir is the directory that holds the container's pages: the fixed
// one, where there is a limits page, whatever its content; else the one that
// the environment names, which is for processes outside of containers. It
// returns NULL where there is neither.
const char *vg_pages_dir(void);

// vg_pages_open opens, checks and maps the limits page of a directory. vg_slot_take or
// vg_usage_map maps the usage page. It returns 0, or -1 with `error` set.
int vg_pages_open(struct vg_pages *pages, const char *dir, struct vg_error *error);

// vg_usage_open opens and checks the usage page. It returns its descriptor, or -1 with
// `error` set.
int vg_usage_open(struct vg_pages *pages, struct vg_error *error);

void vg_pages_close(struct vg_pages *pages);

// vg_pages_find is the index of the GPU with this UUID, or -1.
int vg_pages_find(const struct vg_pages *pages, const uint8_t uuid[16]);

// vg_memory_limit is the memory limit now in force, in bytes. A page that has
// become unreadable allows nothing.
uint64_t vg_memory_limit(struct vg_pages *pages, uint32_t device);

// vg_context_hint is the size expected of a context, 0 if unknown.
uint64_t vg_context_hint(struct vg_pages *pages, uint32_t device);

// vg_limits_follow brings the verified limits up to date after a change, and
// vg_limits_look does if there was one.
void vg_limits_follow(struct vg_pages *pages);

static inline void vg_limits_look(struct vg_pages *pages)
{
	uint64_t generation = __atomic_load_n(&pages->limits->generation, __ATOMIC_RELAXED);

	if (__builtin_expect(generation + 1 != atomic_load_explicit(&pages->verified,
								    memory_order_relaxed), 0))
		vg_limits_follow(pages);
}

// vg_compute_limit is the part of the GPU's time now allowed, in parts per
// million; VG_PPM: no limit. It is never 0: work that is to wait for ever would
// take its program's locks along.
static inline uint32_t vg_compute_limit(struct vg_pages *pages, uint32_t device)
{
	vg_limits_look(pages);
	return atomic_load_explicit(&pages->compute[device], memory_order_relaxed);
}

// vg_lease is a part of the GPU's time, in parts per million, and the vg_now
// until which it may be used; both are 0 where there is none.
struct vg_lease {
	uint32_t ppm;
	uint64_t until;
};

// vg_compute_lease is what the container may use beyond its part for now,
// because others don't.
struct vg_lease vg_compute_lease(const struct vg_pages *pages, uint32_t device);

// vg_is_throttled reports whether any GPU has a compute limit now: one load and a
// comparison, for those that have none.
static inline bool vg_is_throttled(struct vg_pages *pages)
{
	vg_limits_look(pages);
	return atomic_load_explicit(&pages->throttled, memory_order_relaxed);
}

// vg_memory_used is what all processes of the container use now, in bytes;
// those that died and were not yet reclaimed count.
uint64_t vg_memory_used(struct vg_pages *pages, uint32_t device);

// vg_memory_floor is the least that the container uses, whatever stands on its
// usage page: what the agent saw it hold, and what this process was granted or
// has freed since. It is 0 where the agent found nothing amiss.
uint64_t vg_memory_floor(struct vg_pages *pages, uint32_t device);

// vg_slot_device is the record of a slot for a GPU.
static inline struct vg_slot_device *vg_slot_device(const struct vg_pages *pages, uint32_t slot,
						    uint32_t device)
{
	return &pages->usage->slots[slot].devices[device];
}

// All fields of the pages are accessed by these.
static inline uint64_t vg_load(const uint64_t *field)
{
	return __atomic_load_n(field, __ATOMIC_SEQ_CST);
}

static inline void vg_store(uint64_t *field, uint64_t value)
{
	__atomic_store_n(field, value, __ATOMIC_SEQ_CST);
}

// vg_tally adds to what only one thread at a time writes.
static inline void vg_tally(uint64_t *sum, uint64_t value)
{
	__atomic_store_n(sum, __atomic_load_n(sum, __ATOMIC_RELAXED) + value, __ATOMIC_RELAXED);
}

static inline void vg_add(uint64_t *field, uint64_t value)
{
	__atomic_fetch_add(field, value, __ATOMIC_SEQ_CST);
}

static inline uint64_t vg_max(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

// vg_sub subtracts, stopping at 0 where a tenant has written a smaller value.
static inline void vg_sub(uint64_t *field, uint64_t value)
{
	uint64_t old = vg_load(field);

	while (!__atomic_compare_exchange_n(field, &old, old > value ? old - value : 0, true,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		continue;
}

// vg_slot_used is what a slot's process was granted. What others write over our
// own slot does not make us forget.
static inline uint64_t vg_slot_used(const struct vg_pages *pages, uint32_t slot, uint32_t device)
{
	uint64_t used = vg_load(&vg_slot_device(pages, slot, device)->used);

	return (int)slot == pages->slot ? vg_max(used, atomic_load(&pages->own[device])) : used;
}

// vg_slots_in_use bounds a scan of the slots.
static inline uint32_t vg_slots_in_use(const struct vg_pages *pages)
{
	uint32_t bound = __atomic_load_n(&pages->usage->header.high_water, __ATOMIC_SEQ_CST);

	if (pages->slot != vg_no_slot && bound <= (uint32_t)pages->slot)
		bound = (uint32_t)pages->slot + 1;
	return bound < VG_MAX_SLOTS ? bound : VG_MAX_SLOTS;
}

#endif

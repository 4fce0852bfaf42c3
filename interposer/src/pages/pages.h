// SPDX-License-Identifier: Apache-2.0

// This header covers the container's two pages. The container can only read the limits page. All
// processes of the container share the usage page, and each process can write the usage page.
// pkg/limits/internal/layout declares the layout of the pages.

#ifndef VG_PAGES_H
#define VG_PAGES_H

#include <limits.h>

#include "base/error.h"
#include "base/mutex.h"
#include "base/number.h"
#include "pages_gen.h"

enum { vg_no_slot = -1 };

// vg_stuck is the used and pending memory of other threads and processes that did not change while
// a thread waited for room.
struct vg_stuck {
	uint64_t bytes;
	uint64_t until; // vg_now until which no thread waits for a change of `bytes`
};

struct vg_pages {
	const struct vg_limits_page *limits;
	struct vg_usage_page *usage;
	uint32_t device_count;
	int slot; // this process's slot, or vg_no_slot
	uint8_t uuids[VG_MAX_DEVICES][16];
	// the verified content of the active copy of the limits
	struct vg_mutex verify;
	_Atomic uint64_t verified; // generation of that copy, plus one
	_Atomic uint64_t memory[VG_MAX_DEVICES];
	_Atomic uint64_t context[VG_MAX_DEVICES];
	_Atomic uint32_t compute[VG_MAX_DEVICES]; // parts per million of the GPU's time
	_Atomic bool shares[VG_MAX_DEVICES];      // leases are allowed: see vg_limits_lease
	_Atomic bool throttled;                   // some GPU has a compute limit
	// These fields are for GPUs that are shared through the Multi-Process Service. mps is the
	// container's part of the SMs, in parts per million. sms is the number of SMs of the whole GPU.
	_Atomic uint32_t mps[VG_MAX_DEVICES]; // 0: not shared through MPS
	_Atomic uint32_t sms[VG_MAX_DEVICES]; // 0: unknown
	// by GPU: threads of this process that wait for room queue at this mutex
	struct vg_mutex slow[VG_MAX_DEVICES];
	struct vg_stuck stuck[VG_MAX_DEVICES]; // guarded by slow
	// the charge of this process, in memory that no other process can write
	_Atomic uint64_t own[VG_MAX_DEVICES];
	// the agent's last observation that this process has seen, and `own` at that time
	struct vg_mutex look;
	uint64_t looked[VG_MAX_DEVICES];
	uint64_t own_then[VG_MAX_DEVICES];
	uint64_t usage_inode;
	uint64_t usage_device;
	char usage_path[PATH_MAX]; // last: see state.h
};

// vg_pages_dir returns the directory with the container's pages. If the fixed directory contains a
// limits page of any content, vg_pages_dir returns the fixed directory. If not, vg_pages_dir
// returns the directory in the environment, which is for processes outside of containers. Without
// either directory, vg_pages_dir returns NULL.
const char *vg_pages_dir(void);

struct stat;

// vg_page_head is the start of a page. Only the usage page has slot_count and size.
struct vg_page_head {
	uint64_t magic;
	uint32_t version;
	uint32_t slot_count;
	uint64_t size;
};

// vg_pages_open_file opens a file that must be a page with this magic and size. vg_pages_open_file
// returns the descriptor, or -1 with `error` set.
int vg_pages_open_file(const char *path, int flags, uint64_t magic, size_t size, struct stat *info,
		       struct vg_page_head *head, struct vg_error *error);

void vg_pages_close(struct vg_pages *pages);

// vg_pages_find returns the index of the GPU with this UUID, or -1 if the pages do not have the
// GPU.
int vg_pages_find(const struct vg_pages *pages, const uint8_t uuid[16]);

// vg_slot_device returns a slot's record for a GPU.
static inline struct vg_slot_device *vg_slot_device(const struct vg_pages *pages, uint32_t slot,
						    uint32_t device)
{
	return &pages->usage->slots[slot].devices[device];
}

// vg_load and vg_store access fields of the pages with sequential consistency.
static inline uint64_t vg_load(const uint64_t *field)
{
	return __atomic_load_n(field, __ATOMIC_SEQ_CST);
}

static inline void vg_store(uint64_t *field, uint64_t value)
{
	__atomic_store_n(field, value, __ATOMIC_SEQ_CST);
}

// vg_tally adds to a field to which only one thread at a time writes.
static inline void vg_tally(uint64_t *sum, uint64_t value)
{
	__atomic_store_n(sum, __atomic_load_n(sum, __ATOMIC_RELAXED) + value, __ATOMIC_RELAXED);
}

static inline void vg_add(uint64_t *field, uint64_t value)
{
	__atomic_fetch_add(field, value, __ATOMIC_SEQ_CST);
}

// vg_sub subtracts, and stops at 0 if a tenant has written a smaller value.
static inline void vg_sub(uint64_t *field, uint64_t value)
{
	uint64_t old = vg_load(field);

	while (!__atomic_compare_exchange_n(field, &old, old > value ? old - value : 0, true,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		continue;
}

// vg_slot_used returns the bytes that a slot's process was granted. For this process's own slot,
// vg_slot_used returns at least `own`, whatever other processes have written to the slot.
static inline uint64_t vg_slot_used(const struct vg_pages *pages, uint32_t slot, uint32_t device)
{
	uint64_t used = vg_load(&vg_slot_device(pages, slot, device)->used);

	return (int)slot == pages->slot ? vg_max(used, atomic_load(&pages->own[device])) : used;
}

// vg_slots_in_use returns an upper bound for a scan of the slots.
static inline uint32_t vg_slots_in_use(const struct vg_pages *pages)
{
	uint32_t bound = __atomic_load_n(&pages->usage->header.high_water, __ATOMIC_SEQ_CST);

	if (pages->slot != vg_no_slot && bound <= (uint32_t)pages->slot)
		bound = (uint32_t)pages->slot + 1;
	return bound < VG_MAX_SLOTS ? bound : VG_MAX_SLOTS;
}

#endif

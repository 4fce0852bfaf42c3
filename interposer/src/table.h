// SPDX-License-Identifier: Apache-2.0

// What this process holds: a hash table from the driver's handles to what was
// charged for them. Its locks are held for nanoseconds, by a sweep for one of
// 64 parts of the table, never over a call of the driver. A removal does not lock where there is nothing.

#ifndef VG_TABLE_H
#define VG_TABLE_H

#include "base.h"

enum vg_kind {
	VG_LINEAR = 1,  // key: device pointer
	VG_GRANULE,     // key: number of a 2 MiB granule of the address space, and GPU
	VG_ARRAY,       // key: array
	VG_MIPMAP,      // key: mipmapped array
	VG_MODULE,      // key: module
	VG_CODE,        // key: library
	VG_CONTEXT,     // key: context
	VG_PRIMARY,     // key: device number
	VG_GREEN,       // key: green context
	VG_HEAP,        // key: context and the limit of it that was raised
	VG_PHYSICAL,    // key: handle of cuMemCreate
	VG_MAPPING,     // key: address of cuMemMap
	VG_GRAPH,       // key: executable graph
	VG_IMPORT,      // key: address, or external memory object
	VG_POINTER,     // key: address that was imported of a pool, see pointer.h
	VG_USED,        // key: what code is used by, see use.h
	VG_PART,        // key: kernel, function or module that is a part of a library or module
};

struct vg_entry {
	enum vg_kind kind;
	uint32_t device; // index on the pages
	uint64_t key;
	uint64_t bytes;   // charged, or of the mapping
	uint64_t context; // that the driver frees it with; 0: none
	uint64_t extra;   // the kind's own
	uint64_t count;   // the kind's own: how often it must be ended
	void *object;     // the kind's own
	struct vg_entry *next;
};

enum { vg_shards = 64, vg_buckets = 256 };

struct vg_shard {
	struct vg_mutex mutex;
	struct vg_entry *buckets[vg_buckets];
};

struct vg_table {
	struct vg_shard shards[vg_shards];
};

// vg_table_put adds an entry, which is the table's from then on.
void vg_table_put(struct vg_table *table, struct vg_entry *entry);

// vg_table_put_new does so only if there is none with this kind and key; else
// it returns false, and the entry stays the caller's.
bool vg_table_put_new(struct vg_table *table, struct vg_entry *entry);

// vg_table_take removes an entry and hands it to the caller, who frees it. It
// returns NULL if there is none.
struct vg_entry *vg_table_take(struct vg_table *table, enum vg_kind kind, uint64_t key);

// vg_table_get copies an entry and returns whether there is one.
bool vg_table_get(struct vg_table *table, enum vg_kind kind, uint64_t key, struct vg_entry *copy);

// vg_table_with calls `visit` for the entry under its lock, with NULL if there
// is none. What it returns takes the entry's place, NULL removing it; an entry
// that is replaced or removed is the visitor's.
void vg_table_with(struct vg_table *table, enum vg_kind kind, uint64_t key,
		   struct vg_entry *(*visit)(struct vg_entry *entry, void *context), void *context);

// vg_table_sweep removes every entry for which `match` is true and hands them
// over as a list linked by `next`.
struct vg_entry *vg_table_sweep(struct vg_table *table,
				bool (*match)(const struct vg_entry *entry, const void *context),
				const void *context);

#endif

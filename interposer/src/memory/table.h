// SPDX-License-Identifier: Apache-2.0

// This header declares a hash table of the memory that this process holds, from the driver's
// handles to the charges. The table has a lock for each of its 64 parts. A thread holds a lock for
// nanoseconds, or for a sweep of one part, and never during a call of the driver. A removal from an
// empty bucket takes no lock.

#ifndef VG_TABLE_H
#define VG_TABLE_H

#include "base/mutex.h"

enum vg_kind {
	VG_LINEAR = 1,  // key: device pointer; count: exports by a descriptor
	VG_GRANULE,     // key: number of a 2 MiB granule of the address space, and GPU
	VG_ARRAY,       // key: array
	VG_MIPMAP,      // key: mipmapped array
	VG_MODULE,      // key: module
	VG_CODE,        // key: library
	VG_CONTEXT,     // key: context
	VG_PRIMARY,     // key: device number
	VG_GREEN,       // key: green context
	VG_HEAP,        // key: context and its raised limit
	VG_PHYSICAL,    // key: handle of cuMemCreate
	VG_MAPPING,     // key: address of cuMemMap
	VG_GRAPH,       // key: executable graph
	VG_GPUS,        // key: executable graph; `extra` is a bit mask of the GPUs that its nodes use
	VG_IMPORT,      // key: address, or external memory object
	VG_POINTER,     // key: address that was imported from a pool, see pointer.h
	VG_USED,        // key: use of a function or name, see use.h
	VG_PART,        // key: kernel, function or module of a library or module
};

// vg_kind_is_estimate reports whether objects of this kind are charged by estimate, because only
// the driver knows their size.
static inline bool vg_kind_is_estimate(enum vg_kind kind)
{
	return kind == VG_MODULE || kind == VG_CODE || kind == VG_CONTEXT || kind == VG_PRIMARY ||
	       kind == VG_GREEN || kind == VG_GRANULE;
}

static inline bool vg_kind_is_context(enum vg_kind kind)
{
	return kind == VG_CONTEXT || kind == VG_PRIMARY || kind == VG_GREEN;
}

struct vg_entry {
	enum vg_kind kind;
	uint32_t device; // index on the pages
	uint64_t key;
	uint64_t bytes;   // charged bytes, or bytes of the mapping
	uint64_t context; // context whose end frees the object; 0: none
	uint64_t extra;   // meaning depends on the kind
	uint64_t count;   // meaning depends on the kind: number of outstanding frees or releases
	void *object;     // meaning depends on the kind
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

// vg_table_put adds an entry, which then belongs to the table.
void vg_table_put(struct vg_table *table, struct vg_entry *entry);

// vg_table_put_new adds an entry if the table has no entry with this kind and key. If the table has
// an entry, vg_table_put_new returns false, and the new entry still belongs to the caller.
bool vg_table_put_new(struct vg_table *table, struct vg_entry *entry);

// vg_table_take removes an entry and returns the entry, or NULL if the table has no entry. The
// caller frees the entry.
struct vg_entry *vg_table_take(struct vg_table *table, enum vg_kind kind, uint64_t key);

// vg_table_get copies an entry. vg_table_get returns false if the table has no entry.
bool vg_table_get(struct vg_table *table, enum vg_kind kind, uint64_t key, struct vg_entry *copy);

// vg_table_with calls `visit` under the entry's lock, with the entry, or with NULL if the table has
// no entry. The result of `visit` replaces the entry. If the result is NULL, vg_table_with removes
// the entry. A replaced or removed entry belongs to the visitor.
void vg_table_with(struct vg_table *table, enum vg_kind kind, uint64_t key,
		   struct vg_entry *(*visit)(struct vg_entry *entry, void *context), void *context);

// vg_table_sweep removes every entry for which `match` is true, and returns the removed entries as
// a list linked by `next`.
struct vg_entry *vg_table_sweep(struct vg_table *table,
				bool (*match)(const struct vg_entry *entry, const void *context),
				const void *context);

#endif

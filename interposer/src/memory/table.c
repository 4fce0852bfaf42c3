// SPDX-License-Identifier: Apache-2.0

#include "table.h"

#include <stdlib.h>

#include "base/mutex.h"

struct vg_place {
	struct vg_shard *shard;
	struct vg_entry **bucket;
};

// vg_place returns the place of an entry. vg_place mixes kind and key, whose low bits are often
// zero.
static struct vg_place vg_place(struct vg_table *table, enum vg_kind kind, uint64_t key)
{
	uint64_t hash = (key ^ (uint64_t)kind << 56) * UINT64_C(0x9e3779b97f4a7c15);
	struct vg_shard *shard = &table->shards[hash >> 58];

	return (struct vg_place){shard, &shard->buckets[(hash >> 50) % vg_buckets]};
}

// vg_link changes a link under the shard's mutex. vg_is_empty reads the link without the mutex.
static void vg_link(struct vg_entry **at, struct vg_entry *entry)
{
	__atomic_store_n(at, entry, __ATOMIC_RELEASE);
}

// vg_is_empty reports whether the bucket is empty, so that the table has no entry with this key.
// Most frees of stream-ordered memory need no other check.
static bool vg_is_empty(struct vg_place place)
{
	return !__atomic_load_n(place.bucket, __ATOMIC_ACQUIRE);
}

static struct vg_entry **vg_find(struct vg_place place, enum vg_kind kind, uint64_t key)
{
	struct vg_entry **at = place.bucket;

	while (*at && ((*at)->kind != kind || (*at)->key != key))
		at = &(*at)->next;
	return at;
}

void vg_table_put(struct vg_table *table, struct vg_entry *entry)
{
	struct vg_place place = vg_place(table, entry->kind, entry->key);

	vg_mutex_lock(&place.shard->mutex);
	entry->next = *place.bucket;
	vg_link(place.bucket, entry);
	vg_mutex_unlock(&place.shard->mutex);
}

bool vg_table_put_new(struct vg_table *table, struct vg_entry *entry)
{
	struct vg_place place = vg_place(table, entry->kind, entry->key);
	bool is_new;

	vg_mutex_lock(&place.shard->mutex);
	is_new = !*vg_find(place, entry->kind, entry->key);
	if (is_new) {
		entry->next = *place.bucket;
		vg_link(place.bucket, entry);
	}
	vg_mutex_unlock(&place.shard->mutex);
	return is_new;
}

struct vg_entry *vg_table_take(struct vg_table *table, enum vg_kind kind, uint64_t key)
{
	struct vg_place place = vg_place(table, kind, key);
	struct vg_entry **at;
	struct vg_entry *entry;

	if (vg_is_empty(place))
		return NULL;
	vg_mutex_lock(&place.shard->mutex);
	at = vg_find(place, kind, key);
	entry = *at;
	if (entry)
		vg_link(at, entry->next);
	vg_mutex_unlock(&place.shard->mutex);
	return entry;
}

bool vg_table_get(struct vg_table *table, enum vg_kind kind, uint64_t key, struct vg_entry *copy)
{
	struct vg_place place = vg_place(table, kind, key);
	const struct vg_entry *entry;

	vg_mutex_lock(&place.shard->mutex);
	entry = *vg_find(place, kind, key);
	if (entry)
		*copy = *entry;
	vg_mutex_unlock(&place.shard->mutex);
	return entry != NULL;
}

void vg_table_with(struct vg_table *table, enum vg_kind kind, uint64_t key,
		   struct vg_entry *(*visit)(struct vg_entry *entry, void *context), void *context)
{
	struct vg_place place = vg_place(table, kind, key);
	struct vg_entry **at;
	struct vg_entry *old;
	struct vg_entry *next;
	struct vg_entry *now;

	vg_mutex_lock(&place.shard->mutex);
	at = vg_find(place, kind, key);
	old = *at;
	next = old ? old->next : NULL;
	now = visit(old, context);
	if (now) {
		now->next = next;
		vg_link(at, now);
	} else if (old) {
		vg_link(at, next);
	}
	vg_mutex_unlock(&place.shard->mutex);
}

// vg_sweep_bucket moves matching entries to the front of the list `swept`. The caller holds the
// mutex.
static struct vg_entry *vg_sweep_bucket(struct vg_entry **at, struct vg_entry *swept,
					bool (*match)(const struct vg_entry *entry, const void *context),
					const void *context)
{
	while (*at) {
		struct vg_entry *entry = *at;

		if (!match(entry, context)) {
			at = &entry->next;
			continue;
		}
		vg_link(at, entry->next);
		entry->next = swept;
		swept = entry;
	}
	return swept;
}

struct vg_entry *vg_table_sweep(struct vg_table *table,
				bool (*match)(const struct vg_entry *entry, const void *context),
				const void *context)
{
	struct vg_entry *swept = NULL;

	for (size_t i = 0; i < vg_shards; i++) {
		struct vg_shard *shard = &table->shards[i];

		vg_mutex_lock(&shard->mutex);
		for (size_t bucket = 0; bucket < vg_buckets; bucket++)
			swept = vg_sweep_bucket(&shard->buckets[bucket], swept, match, context);
		vg_mutex_unlock(&shard->mutex);
	}
	return swept;
}

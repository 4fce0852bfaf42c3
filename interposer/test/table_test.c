// SPDX-License-Identifier: Apache-2.0

// This test compares the table of this process's memory with a plain list, and covers the table
// with many threads.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mutex.h"
#include "check.h"
#include "memory/table.h"

enum { keys = 3000, kinds = 3, steps = 500000 };

static struct vg_table table;
static struct vg_entry *known[kinds + 1][keys]; // the expected entries
static unsigned seed = 1;

static unsigned random_below(unsigned limit)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % limit;
}

// key_of makes keys like addresses. With this number of keys, some keys share a bucket.
static uint64_t key_of(unsigned i)
{
	return (uint64_t)i << 9;
}

static struct vg_entry *entry_of(enum vg_kind kind, unsigned i)
{
	struct vg_entry *entry = calloc(1, sizeof *entry);

	CHECK(entry);
	*entry = (struct vg_entry){.kind = kind, .key = key_of(i), .bytes = random_below(1000)};
	return entry;
}

static void check_has(enum vg_kind kind, unsigned i)
{
	struct vg_entry copy = {.bytes = 5000};
	const struct vg_entry *want = known[kind][i];

	CHECK_EQUAL(vg_table_get(&table, kind, key_of(i), &copy), want != NULL);
	CHECK_EQUAL(copy.bytes, want ? want->bytes : 5000);
}

struct visit {
	const struct vg_entry *found;
	struct vg_entry *instead;
};

static struct vg_entry *visit(struct vg_entry *entry, void *context)
{
	struct visit *expected = context;

	CHECK(entry == expected->found);
	return expected->instead;
}

static void step(enum vg_kind kind, unsigned i)
{
	struct vg_entry **at = &known[kind][i];
	struct vg_entry *fresh = entry_of(kind, i);
	struct visit context;

	switch (random_below(5)) {
	case 0:
		CHECK_EQUAL(vg_table_put_new(&table, fresh), *at == NULL);
		if (*at)
			break;
		*at = fresh;
		return;
	case 1:
		CHECK(vg_table_take(&table, kind, key_of(i)) == *at);
		free(*at);
		*at = NULL;
		break;
	case 2: // replaced or added
		context = (struct visit){*at, fresh};
		vg_table_with(&table, kind, key_of(i), visit, &context);
		free(*at);
		*at = fresh;
		return;
	case 3: // removed
		context = (struct visit){*at, NULL};
		vg_table_with(&table, kind, key_of(i), visit, &context);
		free(*at);
		*at = NULL;
		break;
	default: // only read
		context = (struct visit){*at, *at};
		vg_table_with(&table, kind, key_of(i), visit, &context);
	}
	free(fresh);
}

static void test_as_a_list(void)
{
	for (int i = 0; i < steps; i++) {
		enum vg_kind kind = (enum vg_kind)(1 + random_below(kinds));
		unsigned key = random_below(keys);

		step(kind, key);
		check_has(kind, key);
		check_has((enum vg_kind)(1 + random_below(kinds)), random_below(keys));
	}
	for (unsigned i = 0; i < keys; i++)
		for (int kind = 1; kind <= kinds; kind++)
			check_has((enum vg_kind)kind, i);
}

static bool has_bytes(const struct vg_entry *entry, const void *context)
{
	return entry->bytes % 2 == *(const uint64_t *)context;
}

// A sweep returns each matching entry once, and keeps all other entries.
static void test_sweep(void)
{
	for (uint64_t odd = 0; odd < 2; odd++) {
		struct vg_entry *swept = vg_table_sweep(&table, has_bytes, &odd);

		CHECK(swept);
		while (swept) {
			struct vg_entry *next = swept->next;
			struct vg_entry **at = known[swept->kind];

			while (*at != swept)
				CHECK(++at < known[swept->kind] + keys);
			CHECK_EQUAL(swept->bytes % 2, odd);
			free(swept);
			*at = NULL;
			swept = next;
		}
		for (unsigned i = 0; i < keys; i++)
			for (int kind = 1; kind <= kinds; kind++) {
				CHECK(!known[kind][i] || known[kind][i]->bytes % 2 != odd);
				check_has((enum vg_kind)kind, i);
			}
	}
}

// A sweep reads no memory beyond the table.
static void test_sweep_ends_with_the_table(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t size = (sizeof(struct vg_table) + page - 1) / page * page;
	char *memory = mmap(NULL, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct vg_table *last;

	CHECK(memory != MAP_FAILED && mprotect(memory + size, page, PROT_NONE) == 0);
	last = (struct vg_table *)(void *)(memory + size - sizeof *last);
	for (size_t i = 0; i < vg_shards; i++)
		vg_mutex_set_rank(&last->shards[i].mutex, VG_RANK_TABLE);
	CHECK(vg_table_sweep(last, has_bytes, &(uint64_t){0}) == NULL);
	munmap(memory, size + page);
}

// The table finds the last added entry of a key first, and loses no entry.
static void test_same_key(void)
{
	struct vg_entry *first = entry_of(VG_LINEAR, 1), *second = entry_of(VG_LINEAR, 1);

	vg_table_put(&table, first);
	vg_table_put(&table, second);
	CHECK(vg_table_take(&table, VG_LINEAR, key_of(1)) == second);
	CHECK(vg_table_take(&table, VG_LINEAR, key_of(1)) == first);
	CHECK(vg_table_take(&table, VG_LINEAR, key_of(1)) == NULL);
	free(first);
	free(second);
}

enum { threads = 3, rounds = 1000000 };

static uint64_t neighbours[threads]; // keys that share a bucket

// place_of returns the bucket of a key's entries. The table is empty.
static size_t place_of(uint64_t key)
{
	struct vg_entry entry = {.kind = VG_ARRAY, .key = key};
	size_t at = 0;

	vg_table_put(&table, &entry);
	while (table.shards[at / vg_buckets].buckets[at % vg_buckets] != &entry)
		CHECK(++at < vg_shards * vg_buckets);
	CHECK(vg_table_take(&table, VG_ARRAY, key) == &entry);
	return at;
}

enum { many = vg_shards * vg_buckets / 4 };

// place_count returns the number of buckets that entries with the keys 0, `apart`, 2 * `apart`… of
// the first kinds take.
static size_t place_count(size_t different, uint64_t apart, int of_kinds)
{
	static struct vg_entry entries[many];
	size_t used = 0;

	memset(entries, 0, sizeof entries);
	for (size_t i = 0; i < different; i++)
		for (int kind = 0; kind < of_kinds; kind++) {
			struct vg_entry *entry = &entries[i * (size_t)of_kinds + (size_t)kind];

			*entry = (struct vg_entry){.kind = (enum vg_kind)(1 + kind), .key = i * apart};
			vg_table_put(&table, entry);
		}
	for (size_t i = 0; i < vg_shards; i++)
		for (size_t bucket = 0; bucket < vg_buckets; bucket++) {
			used += table.shards[i].buckets[bucket] != NULL;
			table.shards[i].buckets[bucket] = NULL;
		}
	return used;
}

// Entries are spread over buckets, whatever the low bits of keys are. The table is empty.
static void test_entries_are_spread(void)
{
	const uint64_t apart[] = {1, 16, 512, 1 << 16, 2 << 20};

	for (size_t i = 0; i < sizeof apart / sizeof *apart; i++)
		CHECK(place_count(many, apart[i], 1) > many / 4);
	CHECK(place_count(1, 1, VG_PART) > VG_PART / 2);
}

static void find_neighbours(void)
{
	static uint64_t seen[vg_shards * vg_buckets][threads];
	static int count[vg_shards * vg_buckets];

	for (uint64_t key = 1;; key++) {
		size_t at = place_of(key);

		seen[at][count[at]++] = key;
		if (count[at] == threads) {
			memcpy(neighbours, seen[at], sizeof neighbours);
			return;
		}
	}
}

static bool has_key(const struct vg_entry *entry, const void *context)
{
	return entry->key == *(const uint64_t *)context;
}

// put_and_take has its own key, but shares the bucket.
static void *put_and_take(void *key)
{
	struct vg_entry entry = {.kind = VG_ARRAY, .key = *(uint64_t *)key};
	struct visit same = {&entry, &entry};
	struct vg_entry copy;

	for (int i = 0; i < rounds; i++) {
		CHECK(vg_table_put_new(&table, &entry));
		CHECK(vg_table_get(&table, VG_ARRAY, entry.key, &copy));
		CHECK(vg_table_take(&table, VG_ARRAY, entry.key) == &entry);
		vg_table_put(&table, &entry);
		vg_table_with(&table, VG_ARRAY, entry.key, visit, &same);
		if (i % 1000) // a sweep takes long
			CHECK(vg_table_take(&table, VG_ARRAY, entry.key) == &entry);
		else
			CHECK(vg_table_sweep(&table, has_key, key) == &entry && !entry.next);
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t all[threads];

	find_neighbours();
	for (int i = 0; i < threads; i++)
		CHECK(!pthread_create(&all[i], NULL, put_and_take, &neighbours[i]));
	for (int i = 0; i < threads; i++)
		pthread_join(all[i], NULL);
}

int main(void)
{
	for (size_t i = 0; i < vg_shards; i++)
		vg_mutex_set_rank(&table.shards[i].mutex, VG_RANK_TABLE);
	test_as_a_list();
	test_sweep();
	test_sweep_ends_with_the_table();
	test_same_key();
	test_entries_are_spread();
	test_threads();
	return 0;
}

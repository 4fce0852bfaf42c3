// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
	fuzz_largest = 4096,
	fuzz_kept = 65536,
	fuzz_map_size = 1 << 13,
	fuzz_patience_s = 20, // time for one input
};

// fuzz_current is the content of a file with the current input. The file remains if the input ends
// the program in any way.
struct fuzz_current {
	uint64_t size;
	uint8_t data[fuzz_largest];
};

static struct fuzz_input fuzz_corpus[fuzz_kept];
static size_t fuzz_corpus_count;
static struct fuzz_current *fuzz_running;
static uint64_t fuzz_random_state;

// ---- coverage

static uint8_t fuzz_hits[fuzz_map_size]; // of the current input, by edge
static uint8_t fuzz_seen[fuzz_map_size]; // of all inputs so far: fuzz_bucket's bits
static uintptr_t fuzz_previous;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
	uintptr_t here = (uintptr_t)__builtin_return_address(0) * UINT64_C(0x9e3779b97f4a7c15) >> 48;
	uint8_t *hits = &fuzz_hits[(here ^ fuzz_previous) % fuzz_map_size];

	fuzz_previous = here >> 1;
	if (*hits < UINT8_MAX)
		++*hits;
}

// fuzz_bucket returns the bit of the order of magnitude of a count.
static uint8_t fuzz_bucket(uint8_t hits)
{
	uint8_t bucket = 1;

	while (hits >>= 1)
		bucket = (uint8_t)(bucket << 1);
	return bucket;
}

static bool fuzz_is_new(void)
{
	bool found = false;

	for (size_t i = 0; i < fuzz_map_size; i++) {
		uint8_t bucket = fuzz_hits[i] ? fuzz_bucket(fuzz_hits[i]) : 0;

		found |= (bucket & ~fuzz_seen[i]) != 0;
		fuzz_seen[i] |= bucket;
	}
	return found;
}

// ---- inputs

uint64_t fuzz_bits(struct fuzz_input *input, size_t bytes)
{
	uint64_t value = 0;

	for (size_t i = 0; i < bytes; i++) {
		uint64_t byte = input->size > 0 ? *input->data : 0;

		value |= byte << 8 * i;
		input->data += input->size > 0;
		input->size -= input->size > 0;
	}
	return value;
}

uint64_t fuzz_number(struct fuzz_input *input, uint64_t matters)
{
	uint64_t kind = fuzz_bits(input, 1);
	uint64_t near = (uint64_t)(int8_t)fuzz_bits(input, 1);

	switch (kind % 8) {
	case 0:
		return near & 0xff;
	case 1:
		return matters + near;
	case 2:
		return matters / 2 + near;
	case 3:
		return UINT64_MAX - (near & 0xff);
	case 4:
		return (UINT64_C(1) << (kind / 8 + 32)) + near;
	case 5:
		return matters / (1 + (near & 0xff));
	default:
		return fuzz_bits(input, 8);
	}
}

static uint64_t fuzz_random(void)
{
	fuzz_random_state ^= fuzz_random_state >> 12;
	fuzz_random_state ^= fuzz_random_state << 25;
	fuzz_random_state ^= fuzz_random_state >> 27;
	return fuzz_random_state * UINT64_C(2685821657736338717) >> 8;
}

static size_t fuzz_below(size_t bound)
{
	return bound ? (size_t)(fuzz_random() % bound) : 0;
}

// ---- mutations, each of an input of at most fuzz_largest bytes

static size_t fuzz_insert(uint8_t *data, size_t size, size_t at, const uint8_t *piece, size_t length)
{
	if (length > fuzz_largest - size)
		length = fuzz_largest - size;
	memmove(data + at + length, data + at, size - at);
	memmove(data + at, piece, length);
	return size + length;
}

static size_t fuzz_delete(uint8_t *data, size_t size)
{
	size_t at = fuzz_below(size);
	size_t length = 1 + fuzz_below(size - at < 16 ? size - at : 16);

	if (size == 0)
		return 0;
	if (length > size - at)
		length = size - at;
	memmove(data + at, data + at + length, size - at - length);
	return size - length;
}

static size_t fuzz_splice(uint8_t *data, size_t size)
{
	const struct fuzz_input *other = &fuzz_corpus[fuzz_below(fuzz_corpus_count)];
	size_t from = fuzz_below(other->size);
	size_t length = 1 + fuzz_below(64);

	if (other->size == 0)
		return size;
	if (length > other->size - from)
		length = other->size - from;
	return fuzz_insert(data, size, fuzz_below(size + 1), other->data + from, length);
}

static size_t fuzz_grow(uint8_t *data, size_t size)
{
	uint8_t piece[16];

	for (size_t i = 0; i < sizeof piece; i++)
		piece[i] = (uint8_t)fuzz_random();
	return fuzz_insert(data, size, fuzz_below(size + 1), piece, 1 + fuzz_below(sizeof piece));
}

static size_t fuzz_mutate(uint8_t *data, size_t size)
{
	static const uint8_t special[] = {0, 1, 2, 0x7f, 0x80, 0xff};
	size_t at = fuzz_below(size);

	switch (fuzz_below(6)) {
	case 0:
		return fuzz_grow(data, size);
	case 1:
		return fuzz_delete(data, size);
	case 2:
		return fuzz_splice(data, size);
	case 3:
		if (size)
			data[at] ^= (uint8_t)(1u << fuzz_below(8));
		return size;
	case 4:
		if (size)
			data[at] = special[fuzz_below(sizeof special)];
		return size;
	default:
		if (size)
			data[at] = (uint8_t)fuzz_random();
		return size;
	}
}

// ---- running

static void fuzz_run(const struct fuzz_target *target, const uint8_t *data, size_t size)
{
	struct fuzz_input input = {.data = fuzz_running->data, .size = size};

	memmove(fuzz_running->data, data, size);
	fuzz_running->size = size;
	fuzz_previous = 0;
	alarm(fuzz_patience_s); // ends the program if an input hangs
	target->run(&input);
}

static bool fuzz_keep(const uint8_t *data, size_t size)
{
	uint8_t *copy = fuzz_corpus_count < fuzz_kept ? malloc(size + 1) : NULL;

	if (!copy)
		return false;
	memcpy(copy, data, size);
	fuzz_corpus[fuzz_corpus_count++] = (struct fuzz_input){.data = copy, .size = size};
	return true;
}

static bool fuzz_try(const struct fuzz_target *target, const uint8_t *data, size_t size)
{
	memset(fuzz_hits, 0, sizeof fuzz_hits);
	fuzz_run(target, data, size);
	return fuzz_is_new() && fuzz_keep(data, size);
}

static void fuzz_save(const char *dir, const uint8_t *data, size_t size)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	char path[4096];
	FILE *file;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
	snprintf(path, sizeof path, "%s/%016llx", dir, (unsigned long long)hash);
	file = fopen(path, "wb");
	if (!file || fwrite(data, 1, size, file) != size || fclose(file)) {
		perror(path);
		exit(1);
	}
}

static double fuzz_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void fuzz_explore(const struct fuzz_target *target, double seconds, const char *keep)
{
	double end = fuzz_now() + seconds;
	static uint8_t data[fuzz_largest];
	size_t runs = 0;

	if (fuzz_corpus_count == 0 && !fuzz_keep(data, 0))
		return;
	while (fuzz_now() < end) {
		const struct fuzz_input *from = &fuzz_corpus[fuzz_below(fuzz_corpus_count)];
		size_t size = from->size;

		memcpy(data, from->data, size);
		for (size_t i = fuzz_below(8) + 1; i > 0; i--)
			size = fuzz_mutate(data, size);
		if (fuzz_try(target, data, size) && keep)
			fuzz_save(keep, data, size);
		runs++;
	}
	printf("fuzz %s: %zu inputs run, %zu of different coverage\n", target->name, runs,
	       fuzz_corpus_count);
}

// ---- the program

static int fuzz_replay_file(const struct fuzz_target *target, const char *path, const char *keep)
{
	uint8_t data[fuzz_largest];
	FILE *file = fopen(path, "rb");
	size_t size;

	if (!file) {
		perror(path);
		return -1;
	}
	size = fread(data, 1, sizeof data, file);
	fclose(file);
	if (fuzz_try(target, data, size) && keep)
		fuzz_save(keep, data, size);
	return 0;
}

static int fuzz_replay(const struct fuzz_target *target, const char *dir, const char *keep)
{
	struct dirent **entries;
	int count = scandir(dir, &entries, NULL, alphasort);
	int failed = 0;

	if (count < 0) {
		perror(dir);
		return -1;
	}
	for (int i = 0; i < count; i++) {
		char path[4096];

		snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
		if (entries[i]->d_name[0] != '.')
			failed |= fuzz_replay_file(target, path, keep);
		free(entries[i]);
	}
	free(entries);
	return failed;
}

static const char *fuzz_current_path(const char *name)
{
	static char path[64];

	snprintf(path, sizeof path, "/tmp/vg-fuzz-%s-%d", name, (int)getpid());
	return path;
}

static int fuzz_open_current(const char *name)
{
	int fd = open(fuzz_current_path(name), O_RDWR | O_CREAT | O_TRUNC, 0600);
	void *mapped = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, sizeof *fuzz_running) == 0)
		mapped = mmap(NULL, sizeof *fuzz_running, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (mapped == MAP_FAILED)
		return -1;
	fuzz_running = mapped;
	return 0;
}

static const struct fuzz_target *fuzz_find(const char *name)
{
	static const struct fuzz_target *const targets[] = {&fuzz_limits, &fuzz_usage,
						     &fuzz_gpu_time, &fuzz_image};

	for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
		if (strcmp(targets[i]->name, name) == 0)
			return targets[i];
	return NULL;
}

// Usage: fuzz TARGET CORPUS SECONDS [SEED [KEEP]]
//
// fuzz runs all inputs of the directory CORPUS, then mutations of these inputs for SECONDS. fuzz
// writes inputs that reach new code to the directory KEEP. With 0 seconds, fuzz writes the inputs
// of the corpus that reach code which no earlier input reaches. fuzz leaves an input that ends the
// program in /tmp/vg-fuzz-TARGET-PID: eight bytes of length, then the input.
int main(int argc, char **argv)
{
	const struct fuzz_target *target = argc >= 4 ? fuzz_find(argv[1]) : NULL;
	const char *keep = argc > 5 ? argv[5] : NULL;
	int failed;

	if (!target) {
		fprintf(stderr, "usage: fuzz limits|usage|gpu_time|image CORPUS SECONDS [SEED [KEEP]]\n");
		return 64;
	}
	fuzz_random_state = argc > 4 ? strtoull(argv[4], NULL, 0) : (uint64_t)time(NULL);
	fuzz_random_state = fuzz_random_state * 2 + 1;
	if (fuzz_open_current(target->name)) {
		perror(fuzz_current_path(target->name));
		return 1;
	}
	fprintf(stderr, "fuzz %s: the input that runs is in %s\n", target->name,
		fuzz_current_path(target->name));
	failed = fuzz_replay(target, argv[2], keep);
	if (!failed)
		fuzz_explore(target, strtod(argv[3], NULL), keep);
	unlink(fuzz_current_path(target->name));
	return failed ? 1 : 0;
}

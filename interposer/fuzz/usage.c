// SPDX-License-Identifier: Apache-2.0

// This file fuzzes the usage page, which every tenant can write. Several processes reserve and
// release memory, start and end. Meanwhile the fuzzer writes arbitrary bytes to the page. Each
// fuzzed process is a mapping in one real process, because file descriptions hold slots.
//
// The fuzzer checks these guarantees:
//    - no crash and no endless wait;
//    - no process is granted more than the limit, whatever the fuzzer writes;
//    - a process that has seen an observation is granted no more than the memory that the last
//      observation of the GPU left;
//    - all processes with unforged counters are together granted no more than that memory. The
//      exception is a forged bound of the scan: a lower bound hides processes from each other;
//    - on an unforged page, exactly the memory that fits is granted.

#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/number.h"
#include "fixture.h"
#include "fuzz.h"
#include "pages/limits.h"
#include "pages/slot.h"
#include "pages/usage.h"
#include "reserve.h"

enum { devices = 2, processes = 4, poked_slots = 8 }; // no test uses a higher slot

static const uint64_t usual_limit = 1 << 24;
static const uint64_t most_observed = UINT64_C(1) << 60;

struct process {
	struct vg_pages pages;
	bool attached;
	bool written; // the process's counters are forged
	uint64_t granted[devices];
	// the last observation of the GPU that the process has seen, and its grant at that time
	uint32_t look[devices];
	uint64_t granted_then[devices];
};

static char dir[256];
static struct vg_usage_page *page; // the file, for writing
static struct vg_limits_device limits[devices];
static struct process all[processes];
static uint64_t observed[devices]; // 0: no observation
static uint32_t looks[devices];
static bool page_written;
static bool scan_written;

// ---- simulated time: no real waits

static uint64_t clock_ns;

uint64_t __wrap_vg_now(void);
int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left);

uint64_t __wrap_vg_now(void)
{
	return clock_ns;
}

int __wrap_nanosleep(const struct timespec *wanted, struct timespec *left)
{
	(void)wanted;
	(void)left;
	clock_ns += 100000000;
	return 0;
}

// ---- the pages

static void set_up(void)
{
	char path[300];
	int fd;

	snprintf(dir, sizeof dir, "%s", test_dir());
	for (uint8_t i = 0; i < devices; i++)
		limits[i] = test_device(i, 0);
	FUZZ_CHECK(test_pages_make(dir, limits, devices) == 0);
	snprintf(path, sizeof path, "%s/usage", dir);
	fd = open(path, O_RDWR | O_CLOEXEC);
	FUZZ_CHECK(fd >= 0);
	page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	FUZZ_CHECK(page != MAP_FAILED);
}

static void limit(struct fuzz_input *input)
{
	uint32_t device = (uint32_t)fuzz_bits(input, 1) % devices;

	limits[device].memory_bytes = fuzz_number(input, usual_limit);
	FUZZ_CHECK(test_pages_update(dir, limits, devices) == 0);
}

// observe records an observation of the GPU with the memory of all processes.
static void observe(struct fuzz_input *input)
{
	uint32_t device = (uint32_t)fuzz_bits(input, 1) % devices;
	uint64_t unit = UINT64_C(1) << VG_OBSERVED_LOOK_BITS;
	uint64_t held = 0;

	for (int i = 0; i < processes; i++)
		if (all[i].attached)
			held = vg_add_saturating(held, all[i].granted[device]);
	if (held > most_observed || fuzz_bits(input, 1) % 4 == 0)
		held = 0;
	observed[device] = vg_round_up(held, unit);
	looks[device]++;
	FUZZ_CHECK(test_pages_observe(dir, device, held) == 0);
}

static void reset(void)
{
	struct vg_usage_header head = {
		.magic = VG_USAGE_MAGIC, .version = VG_VERSION, .slot_count = VG_MAX_SLOTS,
		.size = sizeof *page, .device_count = devices,
	};

	for (uint32_t i = 0; i < devices; i++) {
		limits[i].memory_bytes = usual_limit;
		observed[i] = 0;
		FUZZ_CHECK(test_pages_observe(dir, i, 0) == 0);
	}
	FUZZ_CHECK(test_pages_update(dir, limits, devices) == 0);
	memset(page->slots, 0, poked_slots * sizeof *page->slots);
	page->header = head;
	page_written = false;
	scan_written = false;
}

static bool header_whole(void)
{
	return page->header.magic == VG_USAGE_MAGIC && page->header.version == VG_VERSION &&
	       page->header.slot_count == VG_MAX_SLOTS && page->header.size == sizeof *page;
}

static void attach(struct process *process)
{
	struct vg_error error;

	if (process->attached)
		return;
	*process = (struct process){0};
	FUZZ_CHECK(vg_limits_open(&process->pages, dir, &error) == 0); // the limits page is whole
	if (vg_slot_take(&process->pages, &error)) {
		FUZZ_CHECK(!header_whole());
		vg_pages_close(&process->pages);
		return;
	}
	process->attached = true;
}

static void detach(struct process *process)
{
	if (process->attached)
		vg_pages_close(&process->pages);
	process->attached = false;
}

// ---- forgeries of tenants

static void note_written(size_t at, size_t length)
{
	size_t bound = offsetof(struct vg_usage_page, header.high_water);

	page_written = true;
	scan_written |= at < bound + sizeof page->header.high_water && at + length > bound;
	for (int i = 0; i < processes; i++) {
		size_t start = offsetof(struct vg_usage_page, slots) +
			       (size_t)all[i].pages.slot * sizeof(struct vg_slot);

		if (all[i].attached && at < start + sizeof(struct vg_slot) && at + length > start)
			all[i].written = true;
	}
}

static void poke(struct fuzz_input *input)
{
	size_t span = sizeof page->header + poked_slots * sizeof(struct vg_slot);
	size_t at = fuzz_bits(input, 2) % span;
	size_t length = 1 + fuzz_bits(input, 1) % 16;

	note_written(at, length);
	for (size_t i = 0; i < length; i++)
		((uint8_t *)page)[at + i] = (uint8_t)fuzz_bits(input, 1);
}

static void poke_field(struct fuzz_input *input)
{
	uint32_t slot = (uint32_t)fuzz_bits(input, 1);
	struct vg_slot_device *device = &page->slots[slot % poked_slots].devices[slot / 128];
	uint64_t *fields[] = {&device->used, &device->pending, &device->peak, &device->gpu_time_ns,
			      &device->refusals, &device->wait_ns};
	uint64_t *field = fields[fuzz_bits(input, 1) % (sizeof fields / sizeof *fields)];

	note_written((size_t)((uint8_t *)field - (uint8_t *)page), sizeof *field);
	*field = fuzz_number(input, usual_limit);
}

static void poke_header(struct fuzz_input *input)
{
	struct vg_usage_header *header = &page->header;
	uint32_t *words[] = {&header->high_water, &header->device_count, &header->slot_count,
			     &header->version};
	uint32_t *word = words[fuzz_bits(input, 1) % (sizeof words / sizeof *words)];

	note_written((size_t)((uint8_t *)word - (uint8_t *)page), sizeof *word);
	*word = (uint32_t)fuzz_number(input, VG_MAX_SLOTS);
}

// ---- actions of processes

static uint64_t granted_to_all(uint32_t device)
{
	uint64_t sum = 0;

	for (int i = 0; i < processes; i++)
		if (all[i].attached && !all[i].written)
			sum = vg_add_saturating(sum, all[i].granted[device]);
	return sum;
}

// least returns the lowest use that a process must assume for the container.
static uint64_t least(struct process *process, uint32_t device)
{
	uint64_t granted = process->granted[device];

	if (!observed[device])
		return granted;
	vg_usage_memory(&process->pages, device); // from here on the process has seen the observation
	if (process->look[device] != looks[device])
		process->granted_then[device] = granted;
	process->look[device] = looks[device];
	if (granted < process->granted_then[device])
		return vg_max(granted, observed[device] - vg_min(observed[device],
						process->granted_then[device] - granted));
	return vg_max(granted, vg_add_saturating(observed[device],
						 granted - process->granted_then[device]));
}

static void reserve(struct process *process, struct fuzz_input *input)
{
	uint32_t device = (uint32_t)fuzz_bits(input, 1) % devices;
	uint64_t bytes = fuzz_number(input, limits[device].memory_bytes);
	uint64_t most = limits[device].memory_bytes;
	uint64_t together = vg_add_saturating(granted_to_all(device), bytes);
	uint64_t at_least = vg_add_saturating(least(process, device), bytes);
	bool granted = test_reserve(&process->pages, device, bytes);

	FUZZ_CHECK(page_written || granted == (together <= most && at_least <= most));
	if (!granted) {
		vg_reserve_refused(&process->pages, device, VG_WAY_ALLOC, bytes);
		return;
	}
	FUZZ_CHECK(at_least <= most);
	FUZZ_CHECK(process->written || scan_written || together <= most);
	process->granted[device] += bytes;
}

static void release(struct process *process, struct fuzz_input *input)
{
	uint32_t device = (uint32_t)fuzz_bits(input, 1) % devices;
	uint64_t bytes = vg_min(fuzz_number(input, process->granted[device]), process->granted[device]);

	vg_reserve_release(&process->pages, device, bytes);
	process->granted[device] -= bytes;
}

static void act(struct process *process, struct fuzz_input *input)
{
	if (!process->attached) {
		attach(process);
		return;
	}
	switch (fuzz_bits(input, 1) % 5) {
	case 0:
	case 1:
		reserve(process, input);
		break;
	case 2:
		release(process, input);
		break;
	case 3:
		vg_slots_reap(&process->pages, (uint32_t)fuzz_bits(input, 1) % devices);
		least(process, 0);
		break;
	default:
		detach(process);
		break;
	}
}

static void run(struct fuzz_input *input)
{
	if (!page)
		set_up();
	reset();
	for (int steps = 0; input->size > 0 && steps < 200; steps++) {
		uint64_t what = fuzz_bits(input, 1);

		switch (what % 16) {
		case 0:
			poke(input);
			break;
		case 1:
			poke_header(input);
			break;
		case 2:
		case 3:
			poke_field(input);
			break;
		case 4:
			limit(input);
			break;
		case 5:
			observe(input);
			break;
		default:
			act(&all[what / 16 % processes], input);
			break;
		}
	}
	for (int i = 0; i < processes; i++)
		detach(&all[i]);
}

const struct fuzz_target fuzz_usage = {"usage", run};

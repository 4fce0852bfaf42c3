// SPDX-License-Identifier: Apache-2.0

// processes COUNT BYTES checks the processes that NVML lists on the first GPU, or on the GPU's first
// MIG device. Without this process, NVML must list COUNT processes, which use BYTES together. Each
// process has the device's instances. processes queries all versions of the list. entries_test.sh runs
// this program.

#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { room = 64, insufficient_size = 7 };

struct process_v1 {
	unsigned pid;
	uint64_t used;
};

struct process {
	unsigned pid;
	uint64_t used;
	unsigned instances[2];
};

struct detail {
	unsigned pid;
	uint64_t used;
	unsigned instances[2];
	uint64_t protected;
};

struct detail_list {
	unsigned version;
	unsigned mode;
	unsigned count;
	struct detail *entries;
};

typedef void (*plain_fn)(void);
typedef int (*init_fn)(void);
typedef int (*by_index_fn)(unsigned index, void **device);
typedef int (*mig_by_index_fn)(void *gpu, unsigned index, void **device);
typedef int (*instance_fn)(void *device, unsigned *id);
typedef int (*list_fn)(void *device, unsigned *count, void *entries);
typedef int (*detail_fn)(void *device, struct detail_list *list);

static void *library;
static unsigned instances[2] = {UINT32_MAX, UINT32_MAX}; // of the device

static plain_fn find(const char *name)
{
	void *symbol = dlsym(library, name);
	plain_fn function;

	CHECK(symbol);
	memcpy(&function, &symbol, sizeof function);
	return function;
}

// first_device returns the first MIG device of the first GPU, or the GPU.
static void *first_device(void)
{
	void *gpu = NULL, *device = NULL;

	CHECK_EQUAL(((by_index_fn)find("nvmlDeviceGetHandleByIndex_v2"))(0, &gpu), 0);
	if (((mig_by_index_fn)find("nvmlDeviceGetMigDeviceHandleByIndex"))(gpu, 0, &device))
		return gpu;
	CHECK_EQUAL(((instance_fn)find("nvmlDeviceGetGpuInstanceId"))(device, &instances[0]), 0);
	CHECK_EQUAL(((instance_fn)find("nvmlDeviceGetComputeInstanceId"))(device, &instances[1]), 0);
	return device;
}

// expect checks one list. Each entry begins with a pid and its bytes. The instances follow, except in
// version 1.
static void expect(const void *entries, size_t size, unsigned count, unsigned want, uint64_t bytes)
{
	uint64_t sum = 0;

	CHECK_EQUAL(count, want);
	for (unsigned i = 0; i < count; i++) {
		struct process_v1 entry;

		memcpy(&entry, (const char *)entries + i * size, sizeof entry);
		CHECK_EQUAL(kill((pid_t)entry.pid, 0), 0);
		CHECK(entry.pid != (unsigned)getpid());
		if (size > sizeof entry)
			CHECK(!memcmp((const char *)entries + i * size + sizeof entry, instances, sizeof instances));
		sum += entry.used;
	}
	CHECK_EQUAL(sum, bytes);
}

static void expect_list(void *device, const char *name, size_t size, unsigned want, uint64_t bytes)
{
	list_fn list = (list_fn)find(name);
	char entries[room * sizeof(struct detail)] = {0};
	unsigned count = room;

	CHECK_EQUAL(list(device, &count, entries), 0);
	expect(entries, size, count, want, bytes);
	count = 0;
	CHECK_EQUAL(list(device, &count, NULL), want ? insufficient_size : 0);
	CHECK_EQUAL(count, want);
}

static void expect_details(void *device, unsigned want, uint64_t bytes)
{
	struct detail entries[room] = {{0}};
	struct detail_list list = {.version = sizeof list | 1u << 24, .count = room, .entries = entries};

	CHECK_EQUAL(((detail_fn)find("nvmlDeviceGetRunningProcessDetailList"))(device, &list), 0);
	expect(entries, sizeof *entries, list.count, want, bytes);
}

int main(int argc, char **argv)
{
	unsigned want;
	uint64_t bytes;
	void *device;

	CHECK(argc == 3);
	want = (unsigned)strtoul(argv[1], NULL, 10);
	bytes = strtoull(argv[2], NULL, 10);
	library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	CHECK(library);
	CHECK_EQUAL(((init_fn)find("nvmlInit_v2"))(), 0);
	device = first_device();
	expect_list(device, "nvmlDeviceGetComputeRunningProcesses", sizeof(struct process_v1), want, bytes);
	expect_list(device, "nvmlDeviceGetComputeRunningProcesses_v2", sizeof(struct process), want, bytes);
	expect_list(device, "nvmlDeviceGetComputeRunningProcesses_v3", sizeof(struct process), want, bytes);
	expect_list(device, "nvmlDeviceGetGraphicsRunningProcesses_v3", sizeof(struct process), 0, 0);
	expect_list(device, "nvmlDeviceGetMPSComputeRunningProcesses_v3", sizeof(struct process), 0, 0);
	expect_details(device, want, bytes);
	return 0;
}

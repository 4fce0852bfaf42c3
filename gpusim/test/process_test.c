// SPDX-License-Identifier: Apache-2.0
/* This test covers several processes: their total memory, death at any moment, fork, visibility. */
#include "harness.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONTEXT (512 * MIB)

static void fill(void *unused)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	CUdeviceptr address;

	(void)unused;
	begin();
	while (cuMemAlloc_v2(&address, MIB) == CUDA_SUCCESS)
		;
	sleep_ns(60000 * MS);
}

static void wait_until_used(uint64_t bytes)
{
	for (int i = 0; i < 1000 && used(0) != bytes; i++)
		sleep_ns(10 * MS);
	CHECK(used(0) == bytes);
}

static void the_total_is_never_exceeded(void)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	CUdeviceptr address;
	pid_t hogs[4];

	for (int i = 0; i < 4; i++)
		hogs[i] = start(fill, NULL);
	wait_until_used(4096 * MIB);
	sleep_ns(100 * MS);
	CHECK(used(0) == 4096 * MIB);
	for (int i = 0; i < 4; i++)
		kill_hard(hogs[i]);
	/*
	 * No process has read the state since the death. An allocation detects dead processes by
	 * itself.
	 */
	begin();
	OK(cuMemAlloc_v2(&address, 3000 * MIB));
}

/*
 * churn allocates, frees and launches without end. The test kills the process at a random moment.
 */
static void churn(void *unused)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuMemAllocAsync, CUdeviceptr *, size_t, CUstream);
	DRIVER(cuMemFreeAsync, CUdeviceptr, CUstream);
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	CUstream streams[4];

	(void)unused;
	begin();
	for (int i = 0; i < 4; i++)
		OK(cuStreamCreate(&streams[i], 0));
	for (unsigned i = 0;; i++) {
		CUdeviceptr a, b;

		spin(streams[i % 4], 3000 + i % 5 * 1000, i % 3 ? 1 : 1 << 20);
		if (i % 16)
			continue;
		if (cuMemAlloc_v2(&a, MIB) == CUDA_SUCCESS)
			OK(cuMemFree_v2(a));
		if (cuMemAllocAsync(&b, MIB, streams[0]) == CUDA_SUCCESS)
			OK(cuMemFreeAsync(b, streams[0]));
	}
}

static void a_storm_of_kills_leaves_nothing(void)
{
	struct gs_handle *handle = observer();
	pid_t victims[5];
	unsigned seed = 1;

	for (int i = 0; i < 5; i++)
		victims[i] = start(churn, NULL);
	for (int i = 0; i < 120; i++) {
		sleep_ns((uint64_t)(rand_r(&seed) % 20000) * 1000);
		kill_hard(victims[i % 5]);
		victims[i % 5] = start(churn, NULL);
	}
	for (int i = 0; i < 5; i++)
		kill_hard(victims[i]);
	CHECK(used(0) == 0 && used(1) == 0);
	gs_lock(handle);
	gs_reap(handle);
	for (uint32_t slot = 0; slot < GS_MAX_PROCS; slot++)
		CHECK(!handle->state->procs[slot].in_use);
	CHECK(handle->state->gpus[0].runnable_count == 0);
	fprintf(stderr, "locks taken over: %u\n", handle->state->recoveries);
	gs_unlock(handle);
}

/* die_inside dies while it holds the lock, with half-changed sums and lists. */
static void die_inside(void *role)
{
	struct gs_handle handle;
	struct gs_gpu *gpu;

	CHECK(gs_open(&handle, gs_path(), *(enum gs_role *)role) == 0);
	gs_lock(&handle);
	gpu = &handle.state->gpus[0];
	if (*(enum gs_role *)role == GS_PROCESS)
		CHECK(gs_charge(&handle, 0, 100 * MIB));
	gpu->used_bytes += 12345;
	memset(gpu->runnable, 0xff, sizeof(gpu->runnable));
	gpu->runnable_count = 77;
	raise(SIGKILL);
}

static void a_dead_holder_is_replaced(enum gs_role role)
{
	struct gs_handle *handle = observer();
	uint32_t before = handle->state->recoveries;
	struct gs_handle other;
	uint64_t from;
	int status;
	pid_t child = start(die_inside, &role);

	CHECK(waitpid(child, &status, 0) == child);
	from = gs_now();
	CHECK(used(0) == 0);
	BETWEEN(gs_now() - from, 0, 200 * MS);
	CHECK(handle->state->recoveries == before + 1);
	CHECK(handle->state->gpus[0].runnable_count == 0);
	/* A new process that takes the dead process's identity also frees the lock. */
	child = start(die_inside, &role);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(gs_open(&other, gs_path(), role) == 0);
	gs_lock(&other);
	CHECK(other.state->gpus[0].used_bytes <= 100 * MIB);
	gs_reap(&other);
	CHECK(other.state->gpus[0].used_bytes == 0);
	gs_unlock(&other);
	CHECK(handle->state->recoveries == before + 2);
}

static void dead_process(void *unused)
{
	(void)unused;
	a_dead_holder_is_replaced(GS_PROCESS);
}

static void dead_observer(void *unused)
{
	(void)unused;
	a_dead_holder_is_replaced(GS_OBSERVER);
}

static void die_holding(void *slot)
{
	struct gs_handle handle;

	CHECK(gs_open(&handle, gs_path(), GS_PROCESS) == 0);
	gs_lock(&handle);
	CHECK(gs_charge(&handle, 0, 100 * MIB));
	*(uint32_t *)slot = handle.id;
	gs_unlock(&handle);
	raise(SIGKILL);
}

/*
 * a_newcomer_is_not_the_dead checks that the simulator never treats a new process as the living
 * owner of a dead process's memory.
 */
static void a_newcomer_is_not_the_dead(void *unused)
{
	uint32_t *slot = mmap(NULL, sizeof(*slot), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct gs_handle newcomer;
	int status;
	pid_t child;

	(void)unused;
	CHECK(slot != MAP_FAILED);
	child = start(die_holding, slot);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(gs_open(&newcomer, gs_path(), GS_PROCESS) == 0);
	CHECK(newcomer.id < GS_MAX_PROCS && newcomer.id != *slot);
	CHECK(newcomer.state->procs[*slot].gpu[0].bytes == 100 * MIB);
	CHECK(!gs_proc_alive(&newcomer, *slot, NULL));
	CHECK(used(0) == 0);
}

static void spin_on(void *unused)
{
	DRIVER(cuCtxSynchronize, void);

	(void)unused;
	begin();
	spin(NULL, MS, 1);
	OK(cuCtxSynchronize());
}

static void after_the_storm_all_is_well(void)
{
	for (int i = 0; i < 3; i++)
		finish(start(spin_on, NULL));
}

static void a_forked_child_is_refused(void *unused)
{
	DRIVER(cuInit, unsigned);
	DRIVER(cuCtxSynchronize, void);
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuDeviceGetCount, int *);
	uint64_t before;
	CUdeviceptr address;
	int count;
	pid_t child;

	(void)unused;
	begin();
	before = physical(getpid(), 0);
	child = fork();
	if (child == 0) {
		CHECK(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuMemAlloc_v2(&address, MIB) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED);
		exit(0);
	}
	finish(child);
	CHECK(physical(getpid(), 0) == before);
	OK(cuMemAlloc_v2(&address, MIB));
}

/* uuid_text returns the UUID of a GPU in the state as text. */
static void uuid_text(uint32_t gpu, char text[41])
{
	const uint8_t *u = observer()->state->gpus[gpu].uuid;
	char *out = text + sprintf(text, "GPU-");

	for (int i = 0; i < 16; i++)
		out += sprintf(out, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
}

/* visible is a value of CUDA_VISIBLE_DEVICES, and the visible GPUs in order. */
struct visible {
	const char *list, *expected;
};

static void see(void *argument)
{
	DRIVER(cuInit, unsigned);
	DRIVER(cuDeviceGetCount, int *);
	DRIVER(cuDeviceGetUuid_v2, CUuuid *, CUdevice);
	const struct visible *v = argument;
	char seen[8] = "";
	int count = 0;

	CHECK(setenv("CUDA_VISIBLE_DEVICES", v->list, 1) == 0);
	CHECK(cuInit(0) == (*v->expected ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE));
	if (*v->expected)
		OK(cuDeviceGetCount(&count));
	for (int i = 0; i < count; i++) {
		CUuuid uuid;

		OK(cuDeviceGetUuid_v2(&uuid, i));
		strcat(seen, memcmp(uuid.bytes, observer()->state->gpus[0].uuid, 16) == 0 ? "0" : "1");
	}
	if (strcmp(seen, v->expected) != 0)
		fprintf(stderr, "%s: %s\n", v->list, seen);
	CHECK(strcmp(seen, v->expected) == 0);
}

static void visible_devices(void)
{
	char first[41], second[41], both[96], prefix[16];
	struct visible table[] = {
		{"0", "0"}, {"1", "1"}, {"1,0", "10"}, {"", ""}, {"-1", ""}, {"0,-1,1", "0"},
		{"0,0", ""}, {"7", ""}, {"0,x", "0"}, {first, "0"}, {second, "1"}, {both, "10"},
		{prefix, "1"}, {"GPU-", ""},
	};

	uuid_text(0, first);
	uuid_text(1, second);
	CHECK(snprintf(both, sizeof(both), "%s,%s", second, first) > 0);
	CHECK(snprintf(prefix, sizeof(prefix), "%.12s", second) > 0);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		finish(start(see, &table[i]));
}

static void without_a_state_there_is_no_gpu(void *unused)
{
	DRIVER(cuInit, unsigned);

	(void)unused;
	CHECK(setenv("GPUSIM_STATE", "/nonexistent/state", 1) == 0);
	CHECK(cuInit(0) == CUDA_ERROR_NO_DEVICE);
}

static void run_total(void *unused)
{
	(void)unused;
	the_total_is_never_exceeded();
}

int main(void)
{
	finish(start(run_total, NULL));
	a_storm_of_kills_leaves_nothing();
	finish(start(dead_process, NULL));
	finish(start(dead_observer, NULL));
	finish(start(a_newcomer_is_not_the_dead, NULL));
	after_the_storm_all_is_well();
	finish(start(a_forked_child_is_refused, NULL));
	finish(start(without_a_state_there_is_no_gpu, NULL));
	visible_devices();
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* This test covers time beside the work itself (switches, gaps, latency of launches), and NVML's
 * samples. */
#include "harness.h"

#include "../nvml/nvml_abi.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

static CUevent make_event(void)
{
	DRIVER(cuEventCreate, CUevent *, unsigned);
	CUevent event;

	OK(cuEventCreate(&event, 0));
	return event;
}

static void gaps_are_between_kernels(void *unused)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	CUevent from, to;
	float ms;

	(void)unused;
	begin();
	kernel("spin");
	from = make_event();
	to = make_event();
	spin(NULL, 100 * MS, 1); /* keeps the host ahead */
	OK(cuEventRecord(from, NULL));
	for (int i = 0; i < 10; i++)
		spin(NULL, MS, 1);
	OK(cuEventRecord(to, NULL));
	OK(cuEventSynchronize(to));
	OK(cuEventElapsedTime(&ms, from, to));
	BETWEEN(ms, 14.999, 15.001);
	/* No work precedes the first kernel, and a process keeps its GPU in a gap. */
	BETWEEN((double)gpu_time(getpid(), 0) / 1e6, 114.999, 115.001);
}

static void launches_are_under_way(void *unused)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventQuery, CUevent);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	DRIVER(cuCtxSynchronize, void);
	CUevent early, late;
	uint64_t from, before;
	float ms;

	(void)unused;
	begin();
	spin(NULL, MS, 1); /* the GPU switches from another process */
	OK(cuCtxSynchronize());
	early = make_event();
	late = make_event();
	before = gpu_time(getpid(), 0);
	from = gs_now();
	OK(cuEventRecord(early, NULL));
	CHECK(cuEventQuery(early) == CUDA_ERROR_NOT_READY);
	sleep_ns(3 * MS); /* the kernel arrives later than the event by the latency */
	spin(NULL, MS, 1);
	OK(cuEventRecord(late, NULL));
	OK(cuEventSynchronize(late));
	BETWEEN((double)(gs_now() - from) / 1e6, 9, 20);
	OK(cuEventElapsedTime(&ms, early, late));
	BETWEEN(ms, 4, 14);
	BETWEEN((double)(gpu_time(getpid(), 0) - before) / 1e6, 0.999, 1.501);
}

static void saturate(void *unused)
{
	(void)unused;
	begin();
	kernel("spin");
	for (;;)
		spin(NULL, 50 * MS, 1 << 20);
}

static pid_t start_saturating(void)
{
	pid_t pid = start(saturate, NULL);

	while (gpu_time(pid, 0) == 0)
		sleep_ns(5 * MS);
	return pid;
}

/* a_preemption_costs measures the loss by switches. The slice is 2 ms, and a switch loses 1 ms. */
static void a_preemption_costs(void *unused)
{
	pid_t pids[2] = {start_saturating(), start_saturating()};
	uint64_t from, before;

	(void)unused;
	from = gs_now();
	before = gpu_time(pids[0], 0) + gpu_time(pids[1], 0);
	sleep_ns(300 * MS);
	BETWEEN((double)(gpu_time(pids[0], 0) + gpu_time(pids[1], 0) - before) / (double)(gs_now() - from),
		0.65, 0.69);
	kill_hard(pids[0]);
	kill_hard(pids[1]);
}

#define TURNS 20

/* a_yield_costs measures the loss when the GPU switches to a process with a short kernel, which
 * yields the GPU. */
static void a_yield_costs(void *unused)
{
	DRIVER(cuCtxSynchronize, void);
	pid_t neighbour = start_saturating();
	uint64_t from, before;

	(void)unused;
	begin();
	kernel("spin");
	from = gs_now();
	before = gpu_time(neighbour, 0);
	for (int i = 0; i < TURNS; i++) {
		spin(NULL, 100000, 1);
		OK(cuCtxSynchronize());
		sleep_ns(10 * MS);
	}
	before += (uint64_t)(TURNS * 100000);
	BETWEEN((double)(gs_now() - from - (gpu_time(neighbour, 0) - before)) / TURNS / 1e6, 3.9, 4.1 + 0.2);
	kill_hard(neighbour);
}

static void a_copy_stamps_what_is_behind_it(void *unused)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, size_t, CUstream);
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	const size_t bytes = 2000000; /* 2 ms */
	char *source = calloc(1, bytes);
	pid_t neighbour = start_saturating();
	CUevent event;
	CUdeviceptr to;
	int early = 0;

	(void)unused;
	CHECK(source);
	begin();
	event = make_event();
	OK(cuMemAlloc_v2(&to, bytes));
	for (int i = 0; i < TURNS; i++) {
		uint64_t from;

		OK(cuMemcpyHtoDAsync_v2(to, source, bytes, NULL));
		from = gs_now();
		OK(cuEventRecord(event, NULL));
		OK(cuEventSynchronize(event));
		early += gs_now() - from < 4 * MS; /* the latency of a launch alone is 5 ms */
	}
	BETWEEN(early, TURNS * 3 / 4, TURNS);
	kill_hard(neighbour);
	free(source);
}

static void *nvml(const char *name)
{
	static void *library;
	void *symbol;

	if (!library)
		library = dlopen(getenv("GPUSIM_LIBNVML"), RTLD_NOW);
	CHECK(library);
	symbol = dlsym(library, name);
	CHECK(symbol);
	return symbol;
}

/* a_sample_names_one_process checks that six samples a second name one process each, with all of
 * the GPU's time. */
static void a_sample_names_one_process(void *unused)
{
	nvmlReturn_t (*init)(void) = (nvmlReturn_t(*)(void))nvml("nvmlInit_v2");
	nvmlReturn_t (*by_index)(unsigned, nvmlDevice_t *) =
		(nvmlReturn_t(*)(unsigned, nvmlDevice_t *))nvml("nvmlDeviceGetHandleByIndex_v2");
	nvmlReturn_t (*utilisation)(nvmlDevice_t, struct nvml_process_sample *, unsigned *, nvml_u64) =
		(nvmlReturn_t(*)(nvmlDevice_t, struct nvml_process_sample *, unsigned *, nvml_u64))nvml(
			"nvmlDeviceGetProcessUtilization");
	struct nvml_process_sample samples[64];
	pid_t pids[2] = {start_saturating(), start_saturating()};
	unsigned count = 64;
	nvmlDevice_t device;

	(void)unused;
	CHECK(init() == NVML_SUCCESS && by_index(0, &device) == NVML_SUCCESS);
	sleep_ns(2100 * MS);
	(void)gpu_time(pids[0], 0);
	CHECK(utilisation(device, samples, &count, 0) == NVML_SUCCESS);
	BETWEEN(count, 7, 16); /* of 12; no sample during a switch counts */
	for (unsigned i = 0; i < count; i++) {
		CHECK((pid_t)samples[i].pid == pids[0] || (pid_t)samples[i].pid == pids[1]);
		for (unsigned j = 0; j < i; j++)
			CHECK(samples[i].timestamp != samples[j].timestamp);
	}
	for (unsigned i = 1; i + 1 < count; i++)
		if (samples[i].pid == samples[i - 1].pid && samples[i].pid == samples[i + 1].pid)
			BETWEEN(samples[i].sm, 64, 69);
	kill_hard(pids[0]);
	kill_hard(pids[1]);
}

int main(void)
{
	static void (*const tests[])(void *) = {
		gaps_are_between_kernels,
		launches_are_under_way,
		a_preemption_costs,
		a_yield_costs,
		a_copy_stamps_what_is_behind_it,
		a_sample_names_one_process,
	};

	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		finish(start(tests[i], NULL));
	return 0;
}

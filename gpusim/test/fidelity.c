// SPDX-License-Identifier: Apache-2.0
/*
 * This file compares figures recorded on an H200 (driver 580.159.04, CUDA 13.0, no other load) with
 * measurements of programs on this machine:
 *   fidelity pair|gaps|latency|calls|CALL
 * "calls" lists the calls whose cost was recorded.
 * The program ends with OUT_OF_BOUNDS if a figure differs by more than 5 %. A busy host does not
 * change the times, because times are on the GPU's clock. The time of a call is the best of many
 * batches.
 */
#include "harness.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define TOLERANCE 0.05

static bool off;

static void compare(const char *figure, double recorded, double found, const char *unit)
{
	bool good = fabs(found - recorded) <= TOLERANCE * recorded;

	printf("%-4s %-44s recorded %8.6g %s, found %8.6g\n", good ? "ok" : "OFF", figure, recorded, unit, found);
	off |= !good;
}

/* ---- rates of saturating processes ---- */

static void saturate(void *kernel_ns)
{
	begin();
	for (;;)
		spin(NULL, *(uint64_t *)kernel_ns, 1 << 20);
}

static pid_t start_saturating(uint64_t kernel_ns)
{
	pid_t pid = start(saturate, &kernel_ns);

	while (gpu_time(pid, 0) < 10 * MS)
		sleep_ns(5 * MS);
	return pid;
}

/* moment is a time of the GPU, and the work of two processes up to this time. */
struct moment {
	uint64_t time_ns;
	struct {
		uint64_t gpu_time_ns, launches;
	} of[2];
};

static struct moment look(const pid_t pids[2])
{
	struct gs_handle *handle = observer();
	struct moment now = {0};
	struct gs_proc *proc;
	uint32_t cursor = 0;
	pid_t pid;

	gs_lock(handle);
	gs_advance(handle, gs_now());
	now.time_ns = handle->state->clock_ns;
	while ((proc = gs_proc_next(handle, &cursor))) {
		if (!gs_proc_alive(handle, gs_slot(handle, proc), &pid))
			continue;
		for (int i = 0; i < 2; i++) {
			if (pid != pids[i])
				continue;
			now.of[i].gpu_time_ns = proc->gpu[0].gpu_time_ns;
			now.of[i].launches = proc->gpu[0].launches;
		}
	}
	gs_unlock(handle);
	return now;
}

/* pair measures each process's rate as a share of the rate of a lone process, which has all of the
 * time. */
static void pair(void)
{
	pid_t pids[2] = {start_saturating(200000), start_saturating(20 * MS)};
	struct moment from = look(pids), to;
	double share[2], passed;

	sleep_ns(1000 * MS);
	to = look(pids);
	passed = (double)(to.time_ns - from.time_ns);
	for (int i = 0; i < 2; i++) {
		share[i] = 100 * (double)(to.of[i].gpu_time_ns - from.of[i].gpu_time_ns) / passed;
		kill_hard(pids[i]);
	}
	compare("saturating pair, 200 us kernels", 45.0, share[0], "%");
	compare("saturating pair, 20 ms kernels", 45.3, share[1], "%");
	compare("saturating pair, lost at switches", 100 - 45.0 - 45.3, 100 - share[0] - share[1], "%");
}

static void gaps(void)
{
	pid_t pids[2] = {start_saturating(200000), 0};
	struct moment from = look(pids), to;
	double ran;

	sleep_ns(800 * MS);
	to = look(pids);
	ran = 200000 * (double)(to.of[0].launches - from.of[0].launches);
	compare("200 us kernels at full load, short by", 2.5,
		100 - 100 * ran / (double)(to.time_ns - from.time_ns), "%");
	kill_hard(pids[0]);
}

/* ---- latency of a kernel ---- */

#define SAMPLES 150

/* stamp is an event and the host's time of the event's stamp, because host and GPU have no common
 * clock. */
struct stamp {
	CUevent event;
	uint64_t at;
};

static CUevent make_event(void)
{
	DRIVER(cuEventCreate, CUevent *, unsigned);
	CUevent event;

	OK(cuEventCreate(&event, 0));
	return event;
}

/* make_stamp records events on an idle GPU, which stamps an event during the call. make_stamp
 * returns the event of the quickest call. */
static struct stamp make_stamp(void)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuCtxSynchronize, void);
	struct stamp best = {NULL, 0};
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 20; i++) {
		CUevent event = make_event();
		uint64_t from = gs_now(), took;

		OK(cuEventRecord(event, NULL));
		took = gs_now() - from;
		OK(cuCtxSynchronize());
		if (took < least)
			best = (struct stamp){event, from};
		least = took < least ? took : least;
	}
	return best;
}

static int by_value(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/*
 * launch_and_wait launches a kernel of 1 ms. launch_and_wait returns the ms from before the call to
 * the kernel's end, or a negative number if the host delayed the launch.
 */
static double launch_and_wait(const struct stamp *base, CUevent end)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuEventSynchronize, CUevent);
	DRIVER(cuEventElapsedTime, float *, CUevent, CUevent);
	uint64_t from = gs_now(), took;
	float ms;

	spin(NULL, MS, 1);
	took = gs_now() - from;
	OK(cuEventRecord(end, NULL));
	OK(cuEventSynchronize(end));
	OK(cuEventElapsedTime(&ms, base->event, end));
	return took > 50000 ? -1 : (double)ms - (double)(from - base->at) / 1e6;
}

/*
 * measure launches a kernel every 20 ms. The neighbour's slices restart when a kernel ends. The
 * pauses vary by the golden section of a slice, so that launches hit all parts of a slice.
 */
static void measure(const struct stamp *base, double *samples)
{
	CUevent end = make_event();
	double phase = 0;

	for (int i = 0; i < SAMPLES;) {
		phase = fmod(phase + 0.618034, 1);
		sleep_ns((uint64_t)((18 + 2 * phase) * (double)MS) - 100000);
		samples[i] = launch_and_wait(base, end);
		i += samples[i] > 0;
	}
	qsort(samples, SAMPLES, sizeof(samples[0]), by_value);
}

/* The neighbour waits at this gate. The test forks the neighbour first, because a process that uses
 * CUDA cannot fork a process that uses CUDA. */
static int gate[2];

static void saturate_later(void *kernel_ns)
{
	char open;

	CHECK(read(gate[0], &open, 1) == 1);
	saturate(kernel_ns);
}

static void wait_for_kernels(void *unused)
{
	uint64_t kernel_ns = 20 * MS;
	double samples[SAMPLES];
	pid_t neighbour;
	struct stamp base;

	(void)unused;
	CHECK(pipe(gate) == 0);
	neighbour = start(saturate_later, &kernel_ns);
	begin();
	kernel("spin");
	base = make_stamp();
	measure(&base, samples);
	compare("1 ms kernel alone, p50", 1.05, samples[SAMPLES / 2], "ms");
	base = make_stamp();
	CHECK(write(gate[1], "", 1) == 1);
	while (gpu_time(neighbour, 0) < 10 * MS)
		sleep_ns(5 * MS);
	measure(&base, samples);
	compare("1 ms kernel beside a saturating tenant, p50", 2.2, samples[SAMPLES / 2], "ms");
	compare("1 ms kernel beside a saturating tenant, p99", 3.3, samples[(SAMPLES * 99 + 99) / 100 - 1], "ms");
	kill_hard(neighbour);
	exit(off ? OUT_OF_BOUNDS : 0);
}

static void latency(void)
{
	finish(start(wait_for_kernels, NULL));
}

/* ---- costs of calls ---- */

static CUevent done[2];
static CUdeviceptr piece;

/* batch makes this many calls of a driver function, together with the calls that belong to the
 * function. */
typedef void (*batch)(void *call, int count);

static void launches(void *call, int count)
{
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   CUstream, void **, void **) = (CUresult(*)(CUfunction, unsigned, unsigned, unsigned,
			   unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))call;
	CUfunction empty = kernel("empty");

	for (int i = 0; i < count; i++)
		OK(launch(empty, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
}

static void extended_launches(void *call, int count)
{
	CUresult (*launch)(const CUlaunchConfig *, CUfunction, void **, void **) =
		(CUresult(*)(const CUlaunchConfig *, CUfunction, void **, void **))call;
	CUlaunchConfig config = {.gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
				 .blockDimX = 32, .blockDimY = 1, .blockDimZ = 1};
	CUfunction empty = kernel("empty");

	for (int i = 0; i < count; i++)
		OK(launch(&config, empty, NULL, NULL));
}

static void records(void *call, int count)
{
	CUresult (*record)(CUevent, CUstream) = (CUresult(*)(CUevent, CUstream))call;

	for (int i = 0; i < count; i++)
		OK(record(done[i % 2], NULL));
}

static void queries(void *call, int count)
{
	CUresult (*query)(CUevent) = (CUresult(*)(CUevent))call;

	for (int i = 0; i < count; i++)
		OK(query(done[0]));
}

static void infos(void *call, int count)
{
	CUresult (*info)(size_t *, size_t *) = (CUresult(*)(size_t *, size_t *))call;
	size_t values[2];

	for (int i = 0; i < count; i++)
		OK(info(&values[0], &values[1]));
}

/* pairs makes pairs of calls for 2 MiB, as in the recorded figures. Each call has half of the
 * pair's cost. */
static void pairs(void *call, int count)
{
	DRIVER(cuMemFree_v2, CUdeviceptr);
	CUresult (*alloc)(CUdeviceptr *, size_t) = (CUresult(*)(CUdeviceptr *, size_t))call;

	for (int i = 0; i < count; i++) {
		OK(alloc(&piece, 2 * MIB));
		OK(cuMemFree_v2(piece));
	}
}

static void ordered_pairs(void *call, int count)
{
	DRIVER(cuMemFreeAsync, CUdeviceptr, CUstream);
	CUresult (*alloc)(CUdeviceptr *, size_t, CUstream) = (CUresult(*)(CUdeviceptr *, size_t, CUstream))call;

	for (int i = 0; i < count; i++) {
		OK(alloc(&piece, 2 * MIB, NULL));
		OK(cuMemFreeAsync(piece, NULL));
	}
}

/*
 * The table has no calls below 100 ns (cuEventElapsedTime 69, cuStreamIsCapturing 18, cuCtxGetCurrent
 * 14). These calls take as long as two readings of this host's clock.
 */
static const struct {
	const char *call, *counterpart; /* the other half of a pair */
	batch run;
	double recorded; /* ns */
} costs[] = {
	{"cuLaunchKernel", "", launches, 2983},
	{"cuLaunchKernel_ptsz", "", launches, 2983},
	{"cuLaunchKernelEx", "", extended_launches, 2983},
	{"cuLaunchKernelEx_ptsz", "", extended_launches, 2983},
	{"cuEventRecord", "", records, 1261},
	{"cuEventRecord_ptsz", "", records, 1261},
	{"cuEventQuery", "", queries, 215},
	{"cuMemGetInfo_v2", "", infos, 5232},
	{"cuMemAlloc_v2", "cuMemFree_v2", pairs, 78266},
	{"cuMemAllocAsync", "cuMemFreeAsync", ordered_pairs, 660},
};

/*
 * time_calls returns the time of a call in the quicker batches. The host delayed the other batches.
 * A batch is short, so that a busy host does not disturb all batches.
 */
static double time_calls(batch run, void *call, double recorded)
{
	DRIVER(cuCtxSynchronize, void);
	enum { BATCHES = 100, BATCH_NS = 50000 };
	int calls = recorded < BATCH_NS ? (int)(BATCH_NS / recorded) : 1;
	double took[BATCHES];

	for (int i = 0; i < BATCHES; i++) {
		uint64_t from = gs_now();

		run(call, calls);
		took[i] = (double)(gs_now() - from) / calls;
		OK(cuCtxSynchronize());
	}
	qsort(took, BATCHES, sizeof(took[0]), by_value);
	return took[BATCHES / 4];
}

/* time_call compares the cost of this call, or of its counterpart, with the recorded cost.
 * time_call returns false if no cost was recorded. */
static bool time_call(const char *name)
{
	DRIVER(cuEventRecord, CUevent, CUstream);
	DRIVER(cuCtxSynchronize, void);
	bool found = false;

	if (!done[0])
		begin();
	for (int i = 0; i < 2; i++) {
		done[i] = done[i] ? done[i] : make_event();
		OK(cuEventRecord(done[i], NULL));
	}
	OK(cuCtxSynchronize());
	for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
		if (strcmp(name, costs[i].call) != 0 && strcmp(name, costs[i].counterpart) != 0)
			continue;
		compare(costs[i].call, costs[i].recorded, time_calls(costs[i].run, driver(costs[i].call), costs[i].recorded), "ns");
		found = true;
	}
	return found;
}

static void list_calls(void)
{
	for (size_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++)
		puts(costs[i].call);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} figures[] = {{"pair", pair}, {"gaps", gaps}, {"latency", latency}, {"calls", list_calls}};

	if (argc != 2)
		return 64;
	for (size_t f = 0; f < sizeof(figures) / sizeof(figures[0]); f++) {
		if (strcmp(argv[1], figures[f].name) == 0) {
			figures[f].run();
			return off ? OUT_OF_BOUNDS : 0;
		}
	}
	if (!time_call(argv[1]))
		return 64;
	return off ? OUT_OF_BOUNDS : 0;
}

// SPDX-License-Identifier: Apache-2.0

// evade keeps the GPU busy in ways that may exceed a limit. The work is spread over streams,
// contexts, threads or processes, has high priority, or runs on short-lived streams, contexts or
// processes.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "json.h"
#include "session.h"

enum {
	wl_stream_non_blocking = 1,
	wl_most_lanes = 256,
	wl_contexts = 8,
	wl_threads = 16,
	wl_children = 16,
	wl_highest_priority = -5,
	wl_sm = 1,             // a resource: CU_DEV_RESOURCE_TYPE_SM
	wl_default_stream = 1, // CU_GREEN_CTX_DEFAULT_STREAM
	wl_lasting = 8,        // launches of a short-lived stream
	wl_runners = 4,
	wl_trapping = 2,       // processes with kernels that end with an exception
	wl_one_short = 7,      // one of this many kernels is short
	wl_brief_ns = 50000,
	wl_short_ns = 2000000,
	wl_long_ns = 20000000,
	wl_exit_ns = 25000000, // length of a kernel for which a process is started
	wl_kinds = 30,          // of grids and of blocks
	wl_queues = 8,         // CUDA's default of CUDA_DEVICE_MAX_CONNECTIONS
};

static const double wl_seen_s = 0.3; // time after which the interposer has a stream for probes

// wl_lane is a stream with the kernels that can be launched on it.
struct wl_lane {
	CUcontext context; // NULL: the current context
	CUstream stream;
	CUfunction spin;
};

struct wl_evasion {
	struct wl_session session;
	uint64_t kernel_ns;
	double until;
	uint64_t launches;
	unsigned grid, block; // 0: 1
	size_t lanes;
	struct wl_lane lane[wl_most_lanes];
};

struct wl_way {
	const char *name;
	const char *help;
	int (*run)(struct wl_evasion *evasion);
	bool apart; // only children use the GPU
};

#define WL_TRY(evasion, member, name, ...) \
	wl_session_check(&(evasion)->session, name, WL_CALL(&(evasion)->session.driver, member, __VA_ARGS__))

// wl_lane_add adds a stream of this priority in the current context.
static int wl_lane_add(struct wl_evasion *evasion, CUcontext context, int priority)
{
	struct wl_lane *lane = &evasion->lane[evasion->lanes];

	*lane = (struct wl_lane){.context = context, .spin = evasion->session.spin};
	if (WL_TRY(evasion, stream_create_priority, "cuStreamCreateWithPriority", &lane->stream,
		   wl_stream_non_blocking, priority))
		return -1;
	evasion->lanes++;
	return 0;
}

static int wl_launch(struct wl_evasion *evasion, const struct wl_lane *lane)
{
	void *params[] = {&evasion->kernel_ns};

	if (lane->context &&
	    WL_TRY(evasion, ctx_set_current, "cuCtxSetCurrent", lane->context))
		return -1;
	evasion->launches++;
	return WL_TRY(evasion, launch, "cuLaunchKernel", lane->spin, evasion->grid ? evasion->grid : 1, 1, 1,
		      evasion->block ? evasion->block : 1, 1, 1, 0, lane->stream, params, NULL);
}

// wl_in_turn launches on all lanes, one after another.
static int wl_in_turn(struct wl_evasion *evasion)
{
	for (size_t i = 0; wl_now() < evasion->until; i = (i + 1) % evasion->lanes)
		if (wl_launch(evasion, &evasion->lane[i]))
			return -1;
	return 0;
}

static int wl_run_streams(struct wl_evasion *evasion)
{
	while (evasion->lanes < wl_most_lanes)
		if (wl_lane_add(evasion, NULL, 0))
			return -1;
	return wl_in_turn(evasion);
}

static int wl_run_priorities(struct wl_evasion *evasion)
{
	for (int priority = 0; priority >= wl_highest_priority; priority--)
		if (wl_lane_add(evasion, NULL, priority))
			return -1;
	return wl_in_turn(evasion);
}

static int wl_run_contexts(struct wl_evasion *evasion)
{
	while (evasion->lanes < wl_contexts) {
		CUcontext context;

		if (WL_TRY(evasion, ctx_create, "cuCtxCreate", &context, 0, evasion->session.device) ||
		    wl_session_load_spin(&evasion->session) || wl_lane_add(evasion, context, 0))
			return -1;
	}
	return wl_in_turn(evasion);
}

static int wl_run_green(struct wl_evasion *evasion)
{
	while (evasion->lanes < wl_contexts) {
		struct wl_lane *lane = &evasion->lane[evasion->lanes];
		CUdevResource resource;
		CUdevResourceDesc description;
		CUgreenCtx green;

		*lane = (struct wl_lane){.spin = evasion->session.spin};
		if (WL_TRY(evasion, device_resource, "cuDeviceGetDevResource", evasion->session.device,
			   &resource, wl_sm) ||
		    WL_TRY(evasion, resource_desc, "cuDevResourceGenerateDesc", &description, &resource, 1) ||
		    WL_TRY(evasion, green_create, "cuGreenCtxCreate", &green, description,
			   evasion->session.device, wl_default_stream) ||
		    WL_TRY(evasion, green_stream, "cuGreenCtxStreamCreate", &lane->stream, green,
			   wl_stream_non_blocking, 0))
			return -1;
		evasion->lanes++;
	}
	return wl_in_turn(evasion);
}

// wl_run_churn makes a stream for every few launches, and destroys the stream while the launches
// run.
static int wl_run_churn(struct wl_evasion *evasion)
{
	while (wl_now() < evasion->until) {
		evasion->lanes = 0;
		if (wl_lane_add(evasion, NULL, 0))
			return -1;
		for (int i = 0; i < wl_lasting; i++)
			if (wl_launch(evasion, &evasion->lane[0]))
				return -1;
		if (WL_TRY(evasion, stream_destroy, "cuStreamDestroy", evasion->lane[0].stream))
			return -1;
	}
	return 0;
}

// wl_run_unlike launches kernels of another kind each time, with a stream for each kernel.
static int wl_run_unlike(struct wl_evasion *evasion)
{
	while (wl_now() < evasion->until) {
		evasion->grid = 1 + (unsigned)(evasion->launches % wl_kinds);
		evasion->block = 1 + (unsigned)(evasion->launches / wl_kinds % wl_kinds);
		evasion->lanes = 0;
		if (wl_lane_add(evasion, NULL, 0) || wl_launch(evasion, &evasion->lane[0]) ||
		    WL_TRY(evasion, stream_destroy, "cuStreamDestroy", evasion->lane[0].stream))
			return -1;
	}
	return 0;
}

// wl_run_leaving makes a context for each kernel, and destroys the context while the kernel runs.
static int wl_run_leaving(struct wl_evasion *evasion)
{
	evasion->kernel_ns = wl_long_ns;
	while (wl_now() < evasion->until) {
		CUcontext context;

		evasion->lanes = 0;
		if (WL_TRY(evasion, ctx_create, "cuCtxCreate", &context, 0, evasion->session.device) ||
		    wl_session_load_spin(&evasion->session) || wl_lane_add(evasion, NULL, 0) ||
		    wl_launch(evasion, &evasion->lane[0]) ||
		    WL_TRY(evasion, ctx_destroy, "cuCtxDestroy", context))
			return -1;
	}
	return 0;
}

// wl_run_stall first launches work on one stream, and then on enough streams to share the
// hardware's queues with other work.
static int wl_run_stall(struct wl_evasion *evasion)
{
	double alone = wl_now() + 1;

	if (wl_lane_add(evasion, NULL, 0))
		return -1;
	evasion->kernel_ns = wl_long_ns;
	while (wl_now() < alone)
		if (wl_launch(evasion, &evasion->lane[0]))
			return -1;
	while (evasion->lanes < wl_threads)
		if (wl_lane_add(evasion, NULL, 0))
			return -1;
	return wl_in_turn(evasion);
}

// wl_thread launches on a separate stream.
static void *wl_thread(void *of)
{
	static _Atomic size_t next;
	struct wl_evasion *evasion = of;
	struct wl_lane lane = evasion->lane[next++ % wl_threads];

	lane.context = evasion->session.context;
	while (wl_now() < evasion->until)
		if (wl_launch(evasion, &lane))
			break;
	return NULL;
}

static int wl_run_threads(struct wl_evasion *evasion)
{
	pthread_t threads[wl_threads];
	size_t started = 0;

	while (evasion->lanes < wl_threads)
		if (wl_lane_add(evasion, NULL, 0))
			return -1;
	while (started < wl_threads && pthread_create(&threads[started], NULL, wl_thread, evasion) == 0)
		started++;
	for (size_t i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	return started == wl_threads && evasion->session.result == 0 ? 0 : -1;
}

// wl_run_forks starts children that use the GPU. This process does not use the GPU, because
// children of a process with CUDA cannot use CUDA.
static int wl_run_forks(struct wl_evasion *evasion)
{
	static const struct wl_common common = WL_COMMON_DEFAULTS;
	int status, worst = 0;

	for (int i = 0; i < wl_children; i++) {
		pid_t child = fork();

		if (child < 0)
			return -1;
		if (child)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(wl_session_open(&evasion->session, &common) || wl_session_load_spin(&evasion->session) ||
		      wl_lane_add(evasion, NULL, 0) || wl_in_turn(evasion));
	}
	while (wait(&status) > 0)
		worst |= status;
	return worst ? -1 : 0;
}

// wl_traps_run runs one kernel that ends with an exception, and launches again, although launches
// fail after the exception. The first launch also fails if launches wait for their kernels.
static int wl_traps_run(struct wl_evasion *evasion)
{
	static const struct wl_common common = WL_COMMON_DEFAULTS;

	evasion->kernel_ns = wl_exit_ns;
	if (wl_session_open(&evasion->session, &common) || wl_session_load_spin(&evasion->session) ||
	    wl_lane_add(evasion, NULL, 0))
		return -1;
	evasion->lane[0].spin = evasion->session.trap;
	(void)wl_launch(evasion, &evasion->lane[0]);
	if (!WL_CALL(&evasion->session.driver, stream_synchronize, evasion->lane[0].stream))
		return -1;
	return wl_launch(evasion, &evasion->lane[0]) ? 0 : -1;
}

// wl_exits_run runs one kernel, makes no driver call while the kernel runs, and ends.
static int wl_exits_run(struct wl_evasion *evasion)
{
	static const struct wl_common common = WL_COMMON_DEFAULTS;

	evasion->kernel_ns = wl_exit_ns;
	if (wl_session_open(&evasion->session, &common) || wl_session_load_spin(&evasion->session) ||
	    wl_lane_add(evasion, NULL, 0) || wl_launch(evasion, &evasion->lane[0]))
		return -1;
	wl_sleep_until(wl_now() + (wl_runners + 1) * wl_exit_ns / 1e9); // the other processes also use the GPU
	return 0;
}

// wl_run_each runs each kernel in a new process, with up to `most` processes at a time.
static int wl_run_each(struct wl_evasion *evasion, int (*run)(struct wl_evasion *evasion), int most)
{
	int status, running = 0;

	while (wl_now() < evasion->until) {
		pid_t child;

		if (running == most) {
			if (wait(&status) < 0 || status)
				return -1;
			running--;
		}
		child = fork();
		if (child < 0)
			return -1;
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			_exit(run(evasion) != 0);
		}
		running++;
		evasion->launches++;
	}
	return 0;
}

static int wl_run_exits(struct wl_evasion *evasion)
{
	return wl_run_each(evasion, wl_exits_run, wl_runners);
}

static int wl_run_traps(struct wl_evasion *evasion)
{
	return wl_run_each(evasion, wl_traps_run, wl_trapping);
}

// wl_next_length makes a fixed fraction of the kernels short, so that the shortest kernel does not
// reveal the length of the other kernels.
static void wl_next_length(struct wl_evasion *evasion)
{
	evasion->kernel_ns = evasion->launches % wl_one_short ? wl_long_ns : wl_short_ns;
}

static int wl_run_varying(struct wl_evasion *evasion)
{
	if (wl_lane_add(evasion, NULL, 0))
		return -1;
	while (wl_now() < evasion->until) {
		wl_next_length(evasion);
		if (wl_launch(evasion, &evasion->lane[0]))
			return -1;
	}
	return 0;
}

// wl_launch_some launches some kernels of this length.
static int wl_launch_some(struct wl_evasion *evasion, int count, uint64_t ns)
{
	evasion->kernel_ns = ns;
	for (int i = 0; i < count && wl_now() < evasion->until; i++)
		if (wl_launch(evasion, &evasion->lane[0]))
			return -1;
	return 0;
}

// wl_run_mixed runs brief kernels and one long kernel of each of these kinds, in turn.
static int wl_run_mixed(struct wl_evasion *evasion, unsigned kinds, int brief)
{
	if (wl_lane_add(evasion, NULL, 0))
		return -1;
	for (unsigned kind = 0; wl_now() < evasion->until; kind = (kind + 1) % kinds) {
		evasion->grid = 1 + kind % wl_kinds;
		evasion->block = 1 + kind / wl_kinds;
		if (wl_launch_some(evasion, brief, wl_brief_ns) || wl_launch_some(evasion, 1, wl_long_ns))
			return -1;
	}
	return 0;
}

static int wl_run_once(struct wl_evasion *evasion)
{
	return wl_run_mixed(evasion, wl_kinds * wl_kinds, 1);
}

static int wl_run_few(struct wl_evasion *evasion)
{
	return wl_run_mixed(evasion, wl_lasting * wl_kinds, 6);
}

// wl_run_behind waits for a brief kernel and a long kernel of the same kind.
static int wl_run_behind(struct wl_evasion *evasion)
{
	if (wl_lane_add(evasion, NULL, 0))
		return -1;
	while (wl_now() < evasion->until) {
		evasion->kernel_ns = wl_brief_ns;
		if (wl_launch(evasion, &evasion->lane[0]))
			return -1;
		evasion->kernel_ns = wl_long_ns;
		if (wl_launch(evasion, &evasion->lane[0]) ||
		    WL_TRY(evasion, stream_synchronize, "cuStreamSynchronize", evasion->lane[0].stream))
			return -1;
	}
	return 0;
}

// wl_queue_mixed queues six brief kernels before each long kernel of the same kind.
static int wl_queue_mixed(struct wl_evasion *evasion, const struct wl_lane *lane, double until)
{
	while (wl_now() < until) {
		evasion->kernel_ns = evasion->launches % 7 == 6 ? wl_long_ns : wl_brief_ns;
		if (wl_launch(evasion, lane))
			return -1;
	}
	return 0;
}

static int wl_run_queued(struct wl_evasion *evasion)
{
	return wl_lane_add(evasion, NULL, 0) || wl_queue_mixed(evasion, &evasion->lane[0], evasion->until);
}

// wl_run_hidden continues on the eighth of eight more streams, which shares a hardware queue with
// earlier streams.
static int wl_run_hidden(struct wl_evasion *evasion)
{
	if (wl_lane_add(evasion, NULL, 0) || wl_queue_mixed(evasion, &evasion->lane[0], wl_now() + wl_seen_s))
		return -1;
	while (evasion->lanes <= wl_queues)
		if (wl_lane_add(evasion, NULL, 0))
			return -1;
	return wl_queue_mixed(evasion, &evasion->lane[wl_queues], evasion->until);
}

// wl_refuse tries to destroy the primary context, which the driver refuses.
static void *wl_refuse(void *of)
{
	struct wl_evasion *evasion = of;

	while (wl_now() < evasion->until)
		if (!WL_CALL(&evasion->session.driver, ctx_destroy, evasion->session.context))
			break;
	return NULL;
}

// wl_run_refused launches long kernels of another kind each time, while another thread tries to
// destroy the context.
static int wl_run_refused(struct wl_evasion *evasion)
{
	pthread_t thread;
	int failed = 0;

	if (wl_lane_add(evasion, NULL, 0) || pthread_create(&thread, NULL, wl_refuse, evasion))
		return -1;
	evasion->kernel_ns = wl_long_ns;
	while (!failed && wl_now() < evasion->until) {
		evasion->grid = 1 + (unsigned)(evasion->launches % wl_kinds);
		evasion->block = 1 + (unsigned)(evasion->launches / wl_kinds % wl_kinds);
		failed = wl_launch(evasion, &evasion->lane[0]);
	}
	pthread_join(thread, NULL);
	return failed;
}

// wl_relay_run waits for its turn, runs one kernel, and passes the turn to the next runner. While
// the kernel runs, wl_relay_run makes no call of the driver.
static int wl_relay_run(struct wl_evasion *evasion, int from, int to)
{
	static const struct wl_common common = WL_COMMON_DEFAULTS;
	char turn;

	if (wl_session_open(&evasion->session, &common) || wl_session_load_spin(&evasion->session) ||
	    wl_lane_add(evasion, NULL, 0))
		return -1;
	while (wl_now() < evasion->until && read(from, &turn, 1) == 1) {
		wl_next_length(evasion);
		if (wl_launch(evasion, &evasion->lane[0]))
			return -1;
		wl_sleep_until(wl_now() + (double)evasion->kernel_ns / 1e9);
		if (write(to, &turn, 1) != 1)
			break; // the next runner's time is over
	}
	return 0;
}

// wl_relay_close closes all ends of the pipes except the ends that a runner reads and writes.
// Therefore a runner that waits for an ended runner reads the end of the pipe.
static void wl_relay_close(int pipes[wl_runners][2], int from, int to)
{
	for (int i = 0; i < wl_runners; i++) {
		if (pipes[i][0] != from)
			close(pipes[i][0]);
		if (pipes[i][1] != to)
			close(pipes[i][1]);
	}
}

// wl_run_relay starts children that use the GPU one after another, and never at the same time.
static int wl_run_relay(struct wl_evasion *evasion)
{
	int pipes[wl_runners][2], status, worst = 0, start;

	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < wl_runners; i++)
		if (pipe(pipes[i]))
			return -1;
	for (int i = 0; i < wl_runners; i++) {
		pid_t child = fork();

		if (child < 0)
			return -1;
		if (child)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		wl_relay_close(pipes, pipes[i][0], pipes[(i + 1) % wl_runners][1]);
		_exit(wl_relay_run(evasion, pipes[i][0], pipes[(i + 1) % wl_runners][1]) != 0);
	}
	start = pipes[0][1];
	wl_relay_close(pipes, -1, start);
	if (write(start, "", 1) != 1)
		return -1;
	close(start);
	while (wait(&status) > 0)
		worst |= status;
	return worst ? -1 : 0;
}

// wl_graph_make makes an executable graph of one kernel.
static int wl_graph_make(struct wl_evasion *evasion, CUgraphExec *exec)
{
	void *params[] = {&evasion->kernel_ns};
	const CUkernelNodeParams kernel = {
		.function = evasion->session.spin, .grid = {1, 1, 1}, .block = {1, 1, 1}, .params = params,
	};
	CUgraph graph;
	CUgraphNode node;

	if (WL_TRY(evasion, graph_create, "cuGraphCreate", &graph, 0) ||
	    WL_TRY(evasion, graph_add_kernel, "cuGraphAddKernelNode", &node, graph, NULL, 0, &kernel) ||
	    WL_TRY(evasion, graph_instantiate, "cuGraphInstantiateWithFlags", exec, graph, 0))
		return -1;
	return WL_TRY(evasion, graph_destroy, "cuGraphDestroy", graph);
}

// wl_spread_begin adds a stream on each of the first two GPUs, and loads the kernel on the second
// GPU.
static int wl_spread_begin(struct wl_evasion *evasion)
{
	CUcontext second;
	CUdevice device;

	if (wl_lane_add(evasion, NULL, 0) || WL_TRY(evasion, device_get, "cuDeviceGet", &device, 1) ||
	    WL_TRY(evasion, ctx_create, "cuCtxCreate", &second, 0, device))
		return -1;
	return wl_session_load_spin(&evasion->session) || wl_lane_add(evasion, NULL, 0) ? -1 : 0;
}

// wl_graph_start makes a graph, and launches the graph on a lane.
static int wl_graph_start(struct wl_evasion *evasion, size_t lane, CUgraphExec *exec)
{
	if (wl_graph_make(evasion, exec))
		return -1;
	evasion->launches++;
	return WL_TRY(evasion, graph_launch, "cuGraphLaunch", *exec, evasion->lane[lane].stream);
}

// wl_run_spread runs graphs on streams of two GPUs in turn. The kernel of each graph runs on the
// second GPU.
static int wl_run_spread(struct wl_evasion *evasion)
{
	CUgraphExec exec;

	if (wl_spread_begin(evasion))
		return -1;
	for (size_t i = 0; wl_now() < evasion->until; i = (i + 1) % evasion->lanes)
		if (wl_graph_start(evasion, i, &exec) ||
		    WL_TRY(evasion, stream_synchronize, "cuStreamSynchronize", evasion->lane[i].stream) ||
		    WL_TRY(evasion, graph_exec_destroy, "cuGraphExecDestroy", exec))
			return -1;
	return 0;
}

static int wl_spread_exits_run(struct wl_evasion *evasion)
{
	static const struct wl_common common = WL_COMMON_DEFAULTS;
	CUgraphExec exec;

	evasion->kernel_ns = wl_exit_ns;
	if (wl_session_open(&evasion->session, &common) || wl_spread_begin(evasion) ||
	    wl_graph_start(evasion, evasion->launches % evasion->lanes, &exec))
		return -1;
	wl_sleep_until(wl_now() + (wl_runners + 1) * wl_exit_ns / 1e9);
	return 0;
}

static int wl_run_spread_exits(struct wl_evasion *evasion)
{
	return wl_run_each(evasion, wl_spread_exits_run, wl_runners);
}

static const struct wl_way wl_ways[] = {
	{"streams", "256 streams in turn", wl_run_streams, false},
	{"priorities", "streams of all priorities", wl_run_priorities, false},
	{"contexts", "eight contexts in turn", wl_run_contexts, false},
	{"green", "streams of eight green contexts", wl_run_green, false},
	{"churn", "a new stream for every few launches", wl_run_churn, false},
	{"unlike", "a new stream for every kernel, each of another kind", wl_run_unlike, false},
	{"leaving", "a new context for every kernel", wl_run_leaving, false},
	{"stall", "one stream, then enough streams to share the hardware's queues", wl_run_stall, false},
	{"threads", "sixteen threads with a stream each", wl_run_threads, false},
	{"forks", "sixteen children with a context each", wl_run_forks, true},
	{"exits", "a new process for every kernel", wl_run_exits, true},
	{"traps", "a new process for every kernel, which ends with an exception", wl_run_traps, true},
	{"varying", "short and long kernels of one kind", wl_run_varying, false},
	{"queued", "six brief kernels before each long kernel of one kind", wl_run_queued, false},
	{"hidden", "the same, on a stream that shares a hardware queue", wl_run_hidden, false},
	{"once", "one brief kernel and one long kernel of each kind", wl_run_once, false},
	{"few", "six brief kernels and a long kernel of each of 240 kinds", wl_run_few, false},
	{"behind", "a brief kernel and a long kernel of one kind before each wait", wl_run_behind, false},
	{"refused", "unlike kernels beside a thread that tries to destroy the context", wl_run_refused, false},
	{"spread", "graphs on streams of two GPUs, with kernels on the second GPU only", wl_run_spread, false},
	{"spread-exits", "the same, with a new process for every graph", wl_run_spread_exits, true},
	{"relay", "children in turn, with short and long kernels", wl_run_relay, true},
};

static const struct wl_way *wl_way_find(const char *name)
{
	for (size_t i = 0; i < sizeof wl_ways / sizeof *wl_ways; i++)
		if (strcmp(wl_ways[i].name, name) == 0)
			return &wl_ways[i];
	return NULL;
}

static int wl_evade(struct wl_evasion *evasion, const struct wl_way *way, const struct wl_common *common)
{
	if (!way->apart &&
	    (wl_session_open(&evasion->session, common) || wl_session_load_spin(&evasion->session)))
		return -1;
	return way->run(evasion);
}

int main(int argc, char **argv)
{
	static struct wl_evasion evasion;
	struct wl_common common = WL_COMMON_DEFAULTS;
	const char *name = "streams";
	double kernel_us = 2000, duration = 2;
	bool list = false;
	const struct wl_option table[] = {
		{"way", WL_OPTION_TEXT, &name, "way of launching (default streams; see --list)"},
		{"list", WL_OPTION_FLAG, &list, "list the ways"},
		{"kernel-us", WL_OPTION_NUMBER, &kernel_us, "length of a kernel in µs (default 2000)"},
		{"duration", WL_OPTION_NUMBER, &duration, "seconds of launching (default 2)"},
		WL_COMMON_OPTIONS(common),
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	const struct wl_way *way;

	wl_options_parse(argc, argv, "Keep the GPU busy in ways that may exceed a limit.", table);
	for (size_t i = 0; list && i < sizeof wl_ways / sizeof *wl_ways; i++)
		printf("%-12s %s\n", wl_ways[i].name, wl_ways[i].help);
	if (list)
		return EXIT_SUCCESS;
	way = wl_way_find(name);
	if (!way) {
		fprintf(stderr, "%s: unknown way \"%s\" (--list names them)\n", argv[0], name);
		return WL_EXIT_USAGE;
	}
	evasion.kernel_ns = (uint64_t)(kernel_us * 1e3);
	evasion.until = wl_now() + duration;
	if (wl_evade(&evasion, way, &common))
		return wl_session_fail(&evasion.session, argv[0]);
	wl_json_open(NULL);
	wl_json_string("way", way->name);
	wl_json_integer("launches", (int64_t)evasion.launches);
	wl_json_close();
	return EXIT_SUCCESS;
}

// SPDX-License-Identifier: Apache-2.0

#include "launch.h"

#include <stdio.h>
#include <string.h>

#define WL_TRY_LAUNCH(launcher, member, name, ...)                    \
	wl_session_check((launcher)->session, name,                   \
			 WL_CALL(&(launcher)->session->driver, member, \
				 __VA_ARGS__))

// wl_blocks returns the size of the next grid.
static unsigned wl_blocks(struct wl_launcher *launcher)
{
	uint64_t blocks = launcher->blocks ? launcher->blocks : 1;

	if (launcher->shapes > 1)
		blocks += launcher->next_shape++ % launcher->shapes;
	return (unsigned)blocks;
}

// wl_length returns the length of the next kernel.
static uint64_t *wl_length(struct wl_launcher *launcher)
{
	uint64_t turn;

	if (!launcher->other_ns)
		return &launcher->kernel_ns;
	turn = launcher->next_kernel++ % (launcher->run + launcher->other_run);
	return turn < launcher->run ? &launcher->kernel_ns : &launcher->other_ns;
}

static int wl_launch_on(struct wl_launcher *launcher, CUstream stream)
{
	void *params[] = {wl_length(launcher)};

	return WL_TRY_LAUNCH(launcher, launch, "cuLaunchKernel",
			     launcher->session->spin,
			     wl_blocks(launcher), 1, 1, 1, 1, 1, 0,
			     stream, params, NULL);
}

static int wl_launch_first(struct wl_launcher *launcher)
{
	return wl_launch_on(launcher, launcher->streams[0]);
}

static int wl_launch_null(struct wl_launcher *launcher)
{
	return wl_launch_on(launcher, NULL);
}

static int wl_null_prepare(struct wl_launcher *launcher)
{
	launcher->streams[0] = NULL;
	return 0;
}

static int wl_launch_ptds(struct wl_launcher *launcher)
{
	void *params[] = {wl_length(launcher)};

	return WL_TRY_LAUNCH(launcher, launch_ptsz, "cuLaunchKernel_ptsz",
			     launcher->session->spin,
			     wl_blocks(launcher), 1, 1, 1, 1, 1, 0, NULL,
			     params, NULL);
}

static int wl_launch_ex(struct wl_launcher *launcher)
{
	void *params[] = {wl_length(launcher)};
	CUlaunchConfig config = {.grid = {wl_blocks(launcher), 1, 1},
				 .block = {1, 1, 1},
				 .stream = launcher->streams[0]};

	return WL_TRY_LAUNCH(launcher, launch_ex, "cuLaunchKernelEx", &config,
			     launcher->session->spin, params, NULL);
}

static int wl_launch_coop(struct wl_launcher *launcher)
{
	void *params[] = {wl_length(launcher)};

	return WL_TRY_LAUNCH(launcher, launch_coop, "cuLaunchCooperativeKernel",
			     launcher->session->spin,
			     wl_blocks(launcher), 1, 1, 1, 1, 1, 0,
			     launcher->streams[0], params);
}

static int wl_launch_coop_multi(struct wl_launcher *launcher)
{
	void *params[] = {wl_length(launcher)};
	CUlaunchParams launch = {.function = launcher->session->spin,
				 .grid = {wl_blocks(launcher), 1, 1},
				 .block = {1, 1, 1},
				 .stream = launcher->streams[0],
				 .params = params};

	return WL_TRY_LAUNCH(launcher, launch_coop_multi,
			     "cuLaunchCooperativeKernelMultiDevice", &launch, 1,
			     0);
}

static int wl_legacy_prepare(struct wl_launcher *launcher)
{
	CUfunction spin = launcher->session->spin;

	if (WL_TRY_LAUNCH(launcher, func_block_shape, "cuFuncSetBlockShape",
			  spin, 1, 1, 1) ||
	    WL_TRY_LAUNCH(launcher, param_set, "cuParamSetv", spin, 0,
			  &launcher->kernel_ns, sizeof launcher->kernel_ns))
		return -1;
	return WL_TRY_LAUNCH(launcher, param_size, "cuParamSetSize", spin,
			     sizeof launcher->kernel_ns);
}

static int wl_launch_legacy(struct wl_launcher *launcher)
{
	return WL_TRY_LAUNCH(launcher, launch_grid_async, "cuLaunchGridAsync",
			     launcher->session->spin,
			     (int)wl_blocks(launcher), 1,
			     launcher->streams[0]);
}

static int wl_streams_prepare(struct wl_launcher *launcher)
{
	for (size_t i = 1; i < launcher->stream_count; i++)
		if (WL_TRY_LAUNCH(launcher, stream_create, "cuStreamCreate",
				  &launcher->streams[i],
				  CU_STREAM_NON_BLOCKING) ||
		    WL_TRY_LAUNCH(launcher, event_create, "cuEventCreate",
				  &launcher->joins[i], 0))
			return -1;
	return 0;
}

static int wl_launch_streams(struct wl_launcher *launcher)
{
	CUstream stream = launcher->streams[launcher->next_stream];

	launcher->next_stream =
		(launcher->next_stream + 1) % launcher->stream_count;
	return wl_launch_on(launcher, stream);
}

static int wl_streams_join(struct wl_launcher *launcher)
{
	for (size_t i = 1; i < launcher->stream_count; i++)
		if (WL_TRY_LAUNCH(launcher, event_record, "cuEventRecord",
				  launcher->joins[i], launcher->streams[i]) ||
		    WL_TRY_LAUNCH(launcher, stream_wait_event,
				  "cuStreamWaitEvent", launcher->streams[0],
				  launcher->joins[i], 0))
			return -1;
	return 0;
}

static int wl_event_prepare(struct wl_launcher *launcher)
{
	return WL_TRY_LAUNCH(launcher, event_create, "cuEventCreate",
			     &launcher->joins[0], 0);
}

// wl_launcher_poll polls an event behind the last launch, like programs that do other work at the
// same time.
static int wl_launcher_poll(struct wl_launcher *launcher)
{
	const double pause_s = 50e-6;
	CUresult result;

	if (WL_TRY_LAUNCH(launcher, event_record, "cuEventRecord",
			  launcher->joins[0], launcher->streams[0]))
		return -1;
	for (;;) {
		result = WL_CALL(&launcher->session->driver, event_query,
				 launcher->joins[0]);
		if (result != CUDA_ERROR_NOT_READY)
			return wl_session_check(launcher->session,
						"cuEventQuery", result);
		wl_sleep_until(wl_now() + pause_s);
	}
}

static int wl_launcher_wait_event(struct wl_launcher *launcher)
{
	if (WL_TRY_LAUNCH(launcher, event_record, "cuEventRecord",
			  launcher->joins[0], launcher->streams[0]))
		return -1;
	return WL_TRY_LAUNCH(launcher, event_synchronize, "cuEventSynchronize",
			     launcher->joins[0]);
}

static int wl_download_prepare(struct wl_launcher *launcher)
{
	launcher->streams[0] = NULL;
	return WL_TRY_LAUNCH(launcher, mem_alloc, "cuMemAlloc",
			     &launcher->word, sizeof(uint32_t));
}

// wl_launcher_download waits for the result, like programs that need the result.
static int wl_launcher_download(struct wl_launcher *launcher)
{
	uint32_t word;

	return WL_TRY_LAUNCH(launcher, memcpy_dtoh, "cuMemcpyDtoH", &word,
			     launcher->word, sizeof word);
}

static int wl_add_kernel(struct wl_launcher *launcher, CUgraph graph,
			 CUgraphNode *last)
{
	void *params[] = {wl_length(launcher)};
	CUkernelNodeParams node = {.function = launcher->session->spin,
				   .grid = {wl_blocks(launcher), 1, 1},
				   .block = {1, 1, 1},
				   .params = params};
	CUgraphNode previous = *last;

	return WL_TRY_LAUNCH(launcher, graph_add_kernel,
			     "cuGraphAddKernelNode_v2", last, graph, &previous,
			     previous ? 1 : 0, &node);
}

static int wl_graph_prepare(struct wl_launcher *launcher)
{
	CUgraph graph;
	CUgraphNode last = NULL;

	if (WL_TRY_LAUNCH(launcher, graph_create, "cuGraphCreate", &graph, 0))
		return -1;
	for (size_t i = 0; i < launcher->graph_nodes; i++)
		if (wl_add_kernel(launcher, graph, &last))
			return -1;
	return WL_TRY_LAUNCH(launcher, graph_instantiate,
			     "cuGraphInstantiateWithFlags", &launcher->graph,
			     graph, 0);
}

static int wl_launch_graph(struct wl_launcher *launcher)
{
	return WL_TRY_LAUNCH(launcher, graph_launch, "cuGraphLaunch",
			     launcher->graph, launcher->streams[0]);
}

static const struct wl_pattern wl_patterns[] = {
	{.name = "async", .help = "cuLaunchKernel, one after another",
	 .launch = wl_launch_first},
	{.name = "sync", .help = "cuLaunchKernel, waiting after each burst",
	 .waits = true, .launch = wl_launch_first},
	{.name = "poll", .help = "cuLaunchKernel, polling after each burst until the burst is done",
	 .waits = true, .prepare = wl_event_prepare, .wait = wl_launcher_poll,
	 .launch = wl_launch_first},
	{.name = "event", .help = "cuLaunchKernel, waiting for an event after each burst",
	 .waits = true, .prepare = wl_event_prepare, .wait = wl_launcher_wait_event,
	 .launch = wl_launch_first},
	{.name = "download", .help = "cuLaunchKernel on the legacy default stream, and cuMemcpyDtoH after each burst",
	 .waits = true, .prepare = wl_download_prepare, .wait = wl_launcher_download,
	 .launch = wl_launch_null},
	{.name = "null", .help = "cuLaunchKernel on the legacy default stream",
	 .prepare = wl_null_prepare, .launch = wl_launch_null},
	{.name = "ptds", .help = "cuLaunchKernel on the per-thread default stream",
	 .per_thread = true, .launch = wl_launch_ptds},
	{.name = "streams", .help = "cuLaunchKernel on --streams in turn",
	 .prepare = wl_streams_prepare, .launch = wl_launch_streams,
	 .join = wl_streams_join},
	{.name = "ex", .help = "cuLaunchKernelEx", .launch = wl_launch_ex},
	{.name = "coop", .help = "cuLaunchCooperativeKernel",
	 .launch = wl_launch_coop},
	{.name = "coop-multi", .help = "cuLaunchCooperativeKernelMultiDevice",
	 .launch = wl_launch_coop_multi},
	{.name = "legacy", .help = "cuLaunchGridAsync, of CUDA 2",
	 .prepare = wl_legacy_prepare, .launch = wl_launch_legacy},
	{.name = "graph", .help = "cuGraphLaunch of --graph-nodes in a chain",
	 .prepare = wl_graph_prepare, .launch = wl_launch_graph},
};

#define WL_PATTERNS (sizeof wl_patterns / sizeof *wl_patterns)

const struct wl_pattern *wl_pattern_find(const char *name)
{
	for (size_t i = 0; i < WL_PATTERNS; i++)
		if (strcmp(wl_patterns[i].name, name) == 0)
			return &wl_patterns[i];
	return NULL;
}

void wl_pattern_list(void)
{
	for (size_t i = 0; i < WL_PATTERNS; i++)
		printf("%-12s %s\n", wl_patterns[i].name, wl_patterns[i].help);
}

int wl_launcher_prepare(struct wl_launcher *launcher)
{
	if (WL_TRY_LAUNCH(launcher, stream_create, "cuStreamCreate",
			  &launcher->streams[0], CU_STREAM_NON_BLOCKING))
		return -1;
	if (!launcher->pattern->prepare)
		return 0;
	return launcher->pattern->prepare(launcher);
}

// wl_burst returns the number of launches before each wait.
static uint64_t wl_burst(const struct wl_launcher *launcher)
{
	return launcher->pattern->waits && launcher->burst ? launcher->burst : 1;
}

int wl_launcher_launch(struct wl_launcher *launcher)
{
	for (uint64_t i = 0; i < wl_burst(launcher); i++)
		if (launcher->pattern->launch(launcher))
			return -1;
	return launcher->pattern->waits ? wl_launcher_wait(launcher) : 0;
}

int wl_launcher_record(struct wl_launcher *launcher, CUevent event)
{
	if (launcher->pattern->join && launcher->pattern->join(launcher))
		return -1;
	if (launcher->pattern->per_thread)
		return WL_TRY_LAUNCH(launcher, event_record_ptsz,
				     "cuEventRecord_ptsz", event, NULL);
	return WL_TRY_LAUNCH(launcher, event_record, "cuEventRecord", event,
			     launcher->streams[0]);
}

int wl_launcher_wait(struct wl_launcher *launcher)
{
	if (launcher->pattern->wait)
		return launcher->pattern->wait(launcher);
	if (launcher->pattern->per_thread)
		return WL_TRY_LAUNCH(launcher, stream_synchronize_ptsz,
				     "cuStreamSynchronize_ptsz", NULL);
	return WL_TRY_LAUNCH(launcher, stream_synchronize,
			     "cuStreamSynchronize", launcher->streams[0]);
}

size_t wl_launcher_kernels(const struct wl_launcher *launcher)
{
	return (launcher->graph ? launcher->graph_nodes : 1) * wl_burst(launcher);
}

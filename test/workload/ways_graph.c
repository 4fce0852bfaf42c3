// SPDX-License-Identifier: Apache-2.0

// This file allocates memory through memory nodes of graphs. cuGraphAddMemAllocNode, cuGraphAddNode or
// a capture adds the nodes. The launch of the graph acquires the nodes' memory. The memory stays after
// the launch, because no node frees the memory.

#include "ways.h"

static CUmemAllocNodeParams wl_node(const struct wl_filler *filler,
				    size_t bytes)
{
	return (CUmemAllocNodeParams){
		.pool = {
			.alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED,
			.location = {CU_MEM_LOCATION_TYPE_DEVICE,
				     filler->session->device},
		},
		.bytes = bytes,
	};
}

static int wl_graph_launch(struct wl_filler *filler, CUgraphExec exec)
{
	if (WL_TRY(filler, graph_launch, "cuGraphLaunch", exec, filler->stream))
		return -1;
	return WL_TRY(filler, stream_synchronize, "cuStreamSynchronize",
		      filler->stream);
}

// wl_graph_run instantiates the graph, launches it once, and destroys the graph in any case.
static int wl_graph_run(struct wl_filler *filler, CUgraph graph,
			CUdeviceptr pointer, size_t bytes,
			struct wl_grant *grant)
{
	const struct wl_driver *driver = &filler->session->driver;
	CUgraphExec exec;
	int failed = WL_TRY(filler, graph_instantiate,
			    "cuGraphInstantiateWithFlags", &exec, graph, 0);

	WL_CALL(driver, graph_destroy, graph);
	if (failed)
		return -1;
	if (wl_graph_launch(filler, exec)) {
		WL_CALL(driver, graph_exec_destroy, exec);
		return -1;
	}
	*grant = (struct wl_grant){.handle = pointer,
				   .extra = (uintptr_t)exec,
				   .bytes = bytes};
	return 0;
}

static int wl_graph_take(struct wl_filler *filler, size_t bytes,
			 struct wl_grant *grant)
{
	CUmemAllocNodeParams params = wl_node(filler, bytes);
	CUgraph graph;
	CUgraphNode node;

	if (WL_TRY(filler, graph_create, "cuGraphCreate", &graph, 0))
		return -1;
	if (WL_TRY(filler, graph_add_alloc, "cuGraphAddMemAllocNode", &node,
		   graph, NULL, 0, &params)) {
		WL_CALL(&filler->session->driver, graph_destroy, graph);
		return -1;
	}
	return wl_graph_run(filler, graph, params.pointer, bytes, grant);
}

static int wl_graph_node_take(struct wl_filler *filler, size_t bytes,
			      struct wl_grant *grant)
{
	CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
				    .alloc = wl_node(filler, bytes)};
	CUgraph graph;
	CUgraphNode node;

	if (WL_TRY(filler, graph_create, "cuGraphCreate", &graph, 0))
		return -1;
	if (WL_TRY(filler, graph_add_node, "cuGraphAddNode", &node, graph, NULL,
		   0, &params)) {
		WL_CALL(&filler->session->driver, graph_destroy, graph);
		return -1;
	}
	return wl_graph_run(filler, graph, params.alloc.pointer, bytes, grant);
}

static int wl_capture_take(struct wl_filler *filler, size_t bytes,
			   struct wl_grant *grant)
{
	CUdeviceptr pointer;
	CUgraph graph = NULL;
	int failed;

	if (WL_TRY(filler, capture_begin, "cuStreamBeginCapture_v2",
		   filler->stream, CU_STREAM_CAPTURE_MODE_RELAXED))
		return -1;
	failed = WL_TRY(filler, mem_alloc_async, "cuMemAllocAsync", &pointer,
			bytes, filler->stream);
	if (failed) {
		WL_CALL(&filler->session->driver, capture_end, filler->stream,
			&graph);
		if (graph)
			WL_CALL(&filler->session->driver, graph_destroy, graph);
		return -1;
	}
	if (WL_TRY(filler, capture_end, "cuStreamEndCapture", filler->stream,
		   &graph))
		return -1;
	return wl_graph_run(filler, graph, pointer, bytes, grant);
}

static int wl_graph_give(struct wl_filler *filler, const struct wl_grant *grant)
{
	if (WL_TRY(filler, mem_free_async, "cuMemFreeAsync", grant->handle,
		   filler->stream) ||
	    WL_TRY(filler, stream_synchronize, "cuStreamSynchronize",
		   filler->stream))
		return -1;
	return WL_TRY(filler, graph_exec_destroy, "cuGraphExecDestroy",
		      (CUgraphExec)(uintptr_t)grant->extra);
}

// wl_graph_settle trims the memory of graphs, which the driver keeps for later graphs.
static int wl_graph_settle(struct wl_filler *filler)
{
	return WL_TRY(filler, graph_mem_trim, "cuDeviceGraphMemTrim",
		      filler->session->device);
}

const struct wl_way wl_graph_ways[] = {
	{.name = "graph", .help = "cuGraphAddMemAllocNode, launched",
	 .take = wl_graph_take, .give = wl_graph_give,
	 .settle = wl_graph_settle},
	{.name = "graph-node", .help = "cuGraphAddNode, launched",
	 .take = wl_graph_node_take, .give = wl_graph_give,
	 .settle = wl_graph_settle},
	{.name = "capture", .help = "cuMemAllocAsync captured, launched",
	 .take = wl_capture_take, .give = wl_graph_give,
	 .settle = wl_graph_settle},
	{.name = NULL},
};

// SPDX-License-Identifier: Apache-2.0

#include "graph.h"

#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "driver/handle.h"

// vg_graph_left is a graph on the list of graphs that vg_graph_walk has yet to visit. The list
// replaces recursion, because a program may nest graphs to any depth, and a thread's stack may be
// small.
struct vg_graph_left {
	struct vg_graph_left *next;
	CUgraph graph;
};

static CUresult vg_graph_leave(struct vg_graph_left **left, CUgraph graph)
{
	struct vg_graph_left *new = malloc(sizeof *new);

	if (!new)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*new = (struct vg_graph_left){.next = *left, .graph = graph};
	*left = new;
	return CUDA_SUCCESS;
}

// vg_graph_next removes a graph from the list. vg_graph_next returns false if the list is empty.
static bool vg_graph_next(struct vg_graph_left **left, CUgraph *graph)
{
	struct vg_graph_left *first = *left;

	if (!first)
		return false;
	*graph = first->graph;
	*left = first->next;
	free(first);
	return true;
}

// vg_context_device returns the index of a context's GPU, or -1 if the GPU is unknown.
static int vg_context_device(const struct vg_state *state, CUcontext context)
{
	CUcontext popped;
	CUdevice device;
	int index = -1;

	if (!context || VG_CALL(cuCtxPushCurrent_v2, context))
		return -1;
	if (VG_CALL(cuCtxGetDevice, &device) == CUDA_SUCCESS)
		index = vg_state_device(state, device);
	VG_CALL(cuCtxPopCurrent_v2, &popped);
	return index;
}

// vg_kernel_device returns the index of the GPU of a kernel node, or -1 if the GPU is unknown. The
// driver ignores the context in the parameters if a function is set, and may then not report it.
static int vg_kernel_device(struct vg_state *state, const struct vg_kernel_params *parameters)
{
	struct vg_entry entry;
	CUmodule module;

	if (!parameters->function)
		return vg_context_device(state, parameters->context);
	if (VG_CALL(cuFuncGetModule, &module, parameters->function) == CUDA_SUCCESS &&
	    vg_table_get(&state->table, VG_MODULE, vg_handle_key(module), &entry))
		return (int)entry.device;
	return -1;
}

// vg_gpus_add adds a node's GPU to the mask.
static void vg_gpus_add(struct vg_state *state, int device, struct vg_graph_needs *needs)
{
	if (device >= 0)
		needs->gpus |= UINT32_C(1) << device;
	for (uint32_t i = 0; device < 0 && i < state->pages.device_count; i++)
		if (vg_load(vg_state_context_bytes(state, i)))
			needs->gpus |= UINT32_C(1) << i;
}

static void vg_kernel_add(struct vg_state *state, CUgraphNode node, struct vg_graph_needs *needs)
{
	struct vg_kernel_params parameters = {0};
	const void *function = NULL;

	if (VG_CALL(cuGraphKernelNodeGetParams_v2, node, &parameters) == CUDA_SUCCESS ||
	    VG_CALL(cuGraphKernelNodeGetParams, node, &parameters) == CUDA_SUCCESS)
		function = vg_kernel_function(&parameters);
	if (state->pages.device_count > 1)
		vg_gpus_add(state, function ? vg_kernel_device(state, &parameters) : -1, needs);
	if (needs->use.state && function)
		vg_use_add(&needs->use, function);
}

// vg_node_may_work reports whether a node other than a kernel or a graph may use a GPU's time.
static bool vg_node_may_work(int type)
{
	switch (type) {
	case CU_GRAPH_NODE_TYPE_HOST:
	case CU_GRAPH_NODE_TYPE_EMPTY:
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return false;
	default:
		return true;
	}
}

static CUresult vg_memory_add(const struct vg_state *state, CUgraphNode node,
			      struct vg_graph_needs *needs)
{
	CUDA_MEM_ALLOC_NODE_PARAMS parameters = {0};
	CUresult result = VG_CALL(cuGraphMemAllocNodeGetParams, node, &parameters);
	CUdevice device;
	int index;

	if (result || !vg_handle_location(&parameters.poolProps.location, &device))
		return result;
	index = vg_state_device(state, device);
	if (index < 0)
		needs->foreign = true;
	else
		needs->bytes[index] = vg_add_saturating(needs->bytes[index],
							vg_round_up(parameters.bytesize, 2 * VG_MIB));
	return CUDA_SUCCESS;
}

static CUresult vg_node_add(struct vg_state *state, CUgraphNode node,
			    struct vg_graph_needs *needs, struct vg_graph_left **left)
{
	CUgraph child;
	int type = -1;
	CUresult result = VG_CALL(cuGraphNodeGetType, node, &type);

	if (result)
		return result;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		return vg_memory_add(state, node, needs);
	if (type == CU_GRAPH_NODE_TYPE_KERNEL && (needs->use.state || state->pages.device_count > 1))
		vg_kernel_add(state, node, needs);
	else if (type != CU_GRAPH_NODE_TYPE_GRAPH && vg_node_may_work(type) && state->pages.device_count > 1)
		vg_gpus_add(state, -1, needs);
	if (type != CU_GRAPH_NODE_TYPE_GRAPH)
		return CUDA_SUCCESS;
	result = VG_CALL(cuGraphChildGraphNodeGetGraph, node, &child);
	return result ? result : vg_graph_leave(left, child);
}

static CUresult vg_graph_add(struct vg_state *state, CUgraph graph,
			     struct vg_graph_needs *needs, struct vg_graph_left **left)
{
	CUgraphNode *nodes;
	size_t count = 0;
	CUresult result = VG_CALL(cuGraphGetNodes, graph, NULL, &count);

	if (result || count == 0)
		return result;
	nodes = calloc(count, sizeof *nodes);
	if (!nodes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = VG_CALL(cuGraphGetNodes, graph, nodes, &count);
	for (size_t i = 0; i < count && !result; i++)
		result = vg_node_add(state, nodes[i], needs, left);
	free(nodes);
	return result;
}

// vg_graph_walk adds up the needs of a graph and of all its nested graphs.
static CUresult vg_graph_walk(struct vg_state *state, CUgraph graph,
			      struct vg_graph_needs *needs)
{
	struct vg_graph_left *left = NULL;
	CUresult result = vg_graph_add(state, graph, needs, &left);

	while (vg_graph_next(&left, &graph))
		if (!result)
			result = vg_graph_add(state, graph, needs, &left);
	return result;
}

CUresult vg_graph_look(CUgraph graph, struct vg_graph_needs *needs)
{
	struct vg_state *state = vg_state_ready();
	CUresult result;

	memset(needs, 0, offsetof(struct vg_graph_needs, use));
	vg_use_open(&needs->use, vg_lazy_state());
	result = state ? vg_graph_walk(state, graph, needs) : CUDA_SUCCESS;
	if (result)
		return result;
	return needs->use.state ? vg_use_claim(&needs->use) : CUDA_SUCCESS;
}

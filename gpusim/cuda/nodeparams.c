// SPDX-License-Identifier: Apache-2.0
/* This file reads and changes the parameters of graph nodes. */
#include "graph.h"

#include <string.h>

static CUresult typed(CUgraphNode handle, int type, const void *params, struct sim_node **node)
{
	CUresult err = sim_node_of(handle, node);

	if (err)
		return err;
	return params && (*node)->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_KERNEL, params, &node);

	if (!err)
		*params = node->kernel.params;
	return err;
}

/* cuGraphKernelNodeGetParams fills the first version's structure, which ends before kern. */
CU_API CUresult cuGraphKernelNodeGetParams(CUgraphNode handle, void *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_KERNEL, params, &node);

	if (!err)
		memcpy(params, &node->kernel.params, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return err;
}

CU_API CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_KERNEL, params, &node);

	return err ? err : sim_node_set_kernel(node, params);
}

CU_API CUresult cuGraphKernelNodeSetParams(CUgraphNode handle, const void *v1)
{
	CUDA_KERNEL_NODE_PARAMS params = {0};

	if (!v1)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&params, v1, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return cuGraphKernelNodeSetParams_v2(handle, &params);
}

CU_API CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_MEMSET, params, &node);

	if (!err)
		memcpy(params, &node->memset, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx));
	return err;
}

CU_API CUresult cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_MEMSET, params, &node);

	if (!err)
		memcpy(&node->memset, params, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx));
	return err;
}

CU_API CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_MEMCPY, params, &node);

	if (!err)
		*params = node->copy;
	return err;
}

CU_API CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_MEMCPY, params, &node);

	if (!err)
		node->copy = *params;
	return err;
}

CU_API CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_HOST, params, &node);

	if (!err)
		*params = node->host;
	return err;
}

CU_API CUresult cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_HOST, params, &node);

	if (!err)
		node->host = *params;
	return err;
}

CU_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params, &node);

	if (!err)
		*params = node->alloc;
	return err;
}

CU_API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr *address)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_MEM_FREE, address, &node);

	if (!err)
		*address = node->free;
	return err;
}

CU_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *graph)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_GRAPH, graph, &node);

	if (!err)
		*graph = node->child;
	return err;
}

CU_API CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode handle, CUevent *event)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, &node);

	if (!err)
		*event = node->event;
	return err;
}

CU_API CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode handle, CUevent *event)
{
	struct sim_node *node;
	CUresult err = typed(handle, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, &node);

	if (!err)
		*event = node->event;
	return err;
}

CU_API CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
	struct sim_node *node;
	CUresult err = typed(to, CU_GRAPH_NODE_TYPE_KERNEL, from, &node);

	return err ? err : typed(from, CU_GRAPH_NODE_TYPE_KERNEL, to, &node);
}

/* cuGraphKernelNodeSetAttribute accepts attributes without effect. Attributes are hints to hardware
 * that the simulator does not have. */
CU_API CUresult cuGraphKernelNodeSetAttribute(CUgraphNode handle, int id, const void *value)
{
	struct sim_node *node;

	(void)id;
	return typed(handle, CU_GRAPH_NODE_TYPE_KERNEL, value, &node);
}

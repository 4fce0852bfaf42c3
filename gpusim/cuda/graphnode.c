// SPDX-License-Identifier: Apache-2.0
/* This file creates each type of graph node, with its parameters. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

/* add adds an empty node. finish() removes the node if its parameters cannot be set. */
static CUresult add(CUgraphNode *out, CUgraph handle, const CUgraphNode *deps, size_t count, int type,
		    struct sim_node **node)
{
	struct sim_graph *graph;
	CUresult err = out ? sim_graph_of(handle, &graph) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		err = sim_node_new(graph, type, deps, count, node);
	return err;
}

static CUresult finish(CUgraphNode *out, struct sim_node *node, CUresult err)
{
	if (err)
		(void)cuGraphDestroyNode(node);
	else
		*out = node;
	return err;
}

static CUresult add_kernel(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
			   const CUDA_KERNEL_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = params ? add(out, graph, deps, count, CU_GRAPH_NODE_TYPE_KERNEL, &node) :
				CUDA_ERROR_INVALID_VALUE;

	return err ? err : finish(out, node, sim_node_set_kernel(node, params));
}

/* widen converts parameters of the first version, which end before kern and ctx. */
static CUDA_KERNEL_NODE_PARAMS widen(const void *v1)
{
	CUDA_KERNEL_NODE_PARAMS params = {0};

	memcpy(&params, v1, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return params;
}

CU_API CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
				     size_t count, const void *v1)
{
	CUDA_KERNEL_NODE_PARAMS params;

	if (!v1)
		return CUDA_ERROR_INVALID_VALUE;
	params = widen(v1);
	return add_kernel(out, graph, deps, count, &params);
}

CU_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
					size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
	return add_kernel(out, graph, deps, count, params);
}

CU_API CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
				     size_t count, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx)
{
	struct sim_node *node;
	CUresult err = params ? add(out, graph, deps, count, CU_GRAPH_NODE_TYPE_MEMSET, &node) :
				CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	memcpy(&node->memset, params, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx));
	node->memset.ctx = ctx;
	return finish(out, node, CUDA_SUCCESS);
}

CU_API CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
				     size_t count, const CUDA_MEMCPY3D *params, CUcontext ctx)
{
	struct sim_node *node;
	CUresult err = params ? add(out, graph, deps, count, CU_GRAPH_NODE_TYPE_MEMCPY, &node) :
				CUDA_ERROR_INVALID_VALUE;

	(void)ctx;
	if (err)
		return err;
	node->copy = *params;
	return finish(out, node, CUDA_SUCCESS);
}

CU_API CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
				   size_t count, const CUDA_HOST_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = params && params->fn ? add(out, graph, deps, count, CU_GRAPH_NODE_TYPE_HOST, &node) :
					      CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	node->host = *params;
	return finish(out, node, CUDA_SUCCESS);
}

CU_API CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
					 size_t count, CUgraph child_handle)
{
	struct sim_graph *child;
	struct sim_node *node;
	CUresult err = sim_graph_of(child_handle, &child);

	if (!err)
		err = add(out, graph, deps, count, CU_GRAPH_NODE_TYPE_GRAPH, &node);
	if (err)
		return err;
	node->child = sim_graph_copy(child);
	if (!node->child)
		return finish(out, node, CUDA_ERROR_OUT_OF_MEMORY);
	node->child->owned = true;
	return finish(out, node, CUDA_SUCCESS);
}

CU_API CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
				    size_t count)
{
	struct sim_node *node;
	CUresult err = add(out, graph, deps, count, CU_GRAPH_NODE_TYPE_EMPTY, &node);

	return err ? err : finish(out, node, CUDA_SUCCESS);
}

static CUresult add_event(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
			  int type, CUevent event)
{
	struct sim_node *node;
	CUresult err = event ? add(out, graph, deps, count, type, &node) : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	node->event = event;
	return finish(out, node, CUDA_SUCCESS);
}

CU_API CUresult cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
					  size_t count, CUevent event)
{
	return add_event(out, graph, deps, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CU_API CUresult cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
					size_t count, CUevent event)
{
	return add_event(out, graph, deps, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CU_API CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
				       size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	struct sim_node *node;
	CUresult err = params && params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE ?
			       add(out, graph, deps, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &node) :
			       CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	node->alloc = *params;
	node->alloc.accessDescs = NULL;
	node->alloc.accessDescCount = 0;
	return finish(out, node, sim_node_set_alloc(node, params->bytesize, params->poolProps.location.id,
						    &params->dptr));
}

CU_API CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
				      size_t count, CUdeviceptr address)
{
	struct sim_node *node;
	CUresult err = address ? add(out, graph, deps, count, CU_GRAPH_NODE_TYPE_MEM_FREE, &node) :
				 CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	node->free = address;
	return finish(out, node, CUDA_SUCCESS);
}

static CUresult add_any(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
			CUgraphNodeParams *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return add_kernel(out, graph, deps, count, &p->kernel);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return cuGraphAddMemcpyNode(out, graph, deps, count, &p->memcpy.copyParams,
					    p->memcpy.copyCtx);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return cuGraphAddMemsetNode(out, graph, deps, count, &p->memset, p->memset.ctx);
	case CU_GRAPH_NODE_TYPE_HOST:
		return cuGraphAddHostNode(out, graph, deps, count, &p->host);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return cuGraphAddChildGraphNode(out, graph, deps, count, p->graph.graph);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return cuGraphAddEmptyNode(out, graph, deps, count);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return add_event(out, graph, deps, count, p->type, p->event.event);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return cuGraphAddMemAllocNode(out, graph, deps, count, &p->alloc);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return cuGraphAddMemFreeNode(out, graph, deps, count, p->free.dptr);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CU_API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps, size_t count,
			       CUgraphNodeParams *params)
{
	return add_any(out, graph, deps, count, params);
}

/*
 * cuGraphAddNode_v2 ignores edge data, which can request programmatic launches. In this simulator
 * every dependency is a full dependency.
 */
CU_API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
				  const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params)
{
	(void)data;
	return add_any(out, graph, deps, count, params);
}

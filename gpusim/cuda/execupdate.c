// SPDX-License-Identifier: Apache-2.0
/* This file changes single steps of an executable graph. */
#include "exec.h"

#include <string.h>

static CUresult step_node(CUgraphExec handle, CUgraphNode node, int type, const void *params,
			  struct sim_node **out)
{
	struct sim_exec *exec;
	struct step *step;
	CUresult err = sim_exec_of(handle, &exec);

	if (err)
		return err;
	step = sim_exec_step(exec, node);
	if (!params || !step || !step->node || step->node->type != type)
		return CUDA_ERROR_INVALID_VALUE;
	*out = step->node;
	return CUDA_SUCCESS;
}

static CUresult set_kernel(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
	struct sim_node *own;
	CUresult err = step_node(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, params, &own);

	return err ? err : sim_node_set_kernel(own, params);
}

CU_API CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const void *v1)
{
	CUDA_KERNEL_NODE_PARAMS params = {0};

	if (!v1)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&params, v1, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
	return set_kernel(exec, node, &params);
}

CU_API CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
						  const CUDA_KERNEL_NODE_PARAMS *params)
{
	return set_kernel(exec, node, params);
}

CU_API CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node,
					       const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx)
{
	struct sim_node *own;
	CUresult err = step_node(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, params, &own);

	(void)ctx;
	if (!err)
		memcpy(&own->memset, params, offsetof(CUDA_MEMSET_NODE_PARAMS, ctx));
	return err;
}

CU_API CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node,
					       const CUDA_MEMCPY3D *params, CUcontext ctx)
{
	struct sim_node *own;
	CUresult err = step_node(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, params, &own);

	(void)ctx;
	if (!err)
		own->copy = *params;
	return err;
}

CU_API CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node,
					     const CUDA_HOST_NODE_PARAMS *params)
{
	struct sim_node *own;
	CUresult err = step_node(exec, node, CU_GRAPH_NODE_TYPE_HOST, params, &own);

	if (!err)
		own->host = *params;
	return err;
}

CU_API CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return set_kernel(exec, node, &p->kernel);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return cuGraphExecMemsetNodeSetParams(exec, node, &p->memset, NULL);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return cuGraphExecMemcpyNodeSetParams(exec, node, &p->memcpy.copyParams, NULL);
	case CU_GRAPH_NODE_TYPE_HOST:
		return cuGraphExecHostNodeSetParams(exec, node, &p->host);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

/*
 * cuGraphNodeSetEnabled changes a step of the executable graph, not the node of the graph.
 */
CU_API CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned enabled)
{
	struct sim_exec *exec;
	struct step *step;
	CUresult err = sim_exec_of(handle, &exec);

	if (err)
		return err;
	step = sim_exec_step(exec, node);
	if (!step || !step->node)
		return CUDA_ERROR_INVALID_VALUE;
	step->node->disabled = !enabled;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned *enabled)
{
	struct sim_exec *exec;
	struct step *step;
	CUresult err = sim_exec_of(handle, &exec);

	if (err)
		return err;
	step = sim_exec_step(exec, node);
	if (!step || !step->node || !enabled)
		return CUDA_ERROR_INVALID_VALUE;
	*enabled = !step->node->disabled;
	return CUDA_SUCCESS;
}

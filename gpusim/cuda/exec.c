// SPDX-License-Identifier: Apache-2.0
/* This file implements executable graphs: instantiation, launch, upload. */
#include "exec.h"

#include "module.h"
#include "queue.h"

#include <stdlib.h>
#include <string.h>

#define EXEC_MAGIC 0x45584543U

CUresult sim_exec_of(CUgraphExec handle, struct sim_exec **exec)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle || handle->magic != EXEC_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	*exec = handle;
	return CUDA_SUCCESS;
}

struct step *sim_exec_step(struct sim_exec *exec, CUgraphNode node)
{
	for (size_t i = 0; i < exec->count; i++)
		if (exec->steps[i].source == node && node)
			return &exec->steps[i];
	return NULL;
}

/* ---- layout of a graph ---- */

static CUresult add_step(struct sim_exec *exec, struct sim_node *source, struct sim_node *node,
			 const size_t *deps, size_t count)
{
	struct step *step;

	if (exec->count == exec->room) {
		size_t room = exec->room ? exec->room * 2 : 32;
		struct step *grown = realloc(exec->steps, room * sizeof(*grown));

		if (!grown)
			return CUDA_ERROR_OUT_OF_MEMORY;
		exec->steps = grown;
		exec->room = room;
	}
	step = &exec->steps[exec->count];
	*step = (struct step){.source = source, .node = node, .leaf = true};
	if (count) {
		step->deps = malloc(count * sizeof(*deps));
		if (!step->deps)
			return CUDA_ERROR_OUT_OF_MEMORY;
		memcpy(step->deps, deps, count * sizeof(*deps));
	}
	step->dep_count = count;
	for (size_t i = 0; i < count; i++)
		exec->steps[deps[i]].leaf = false;
	exec->count++;
	return CUDA_SUCCESS;
}

static CUresult lay_out(struct sim_exec *exec, struct sim_graph *source, struct sim_graph *copy,
			const size_t *before, size_t before_count);

/*
 * lay_out_child adds a child graph's steps, then a step for the child's end. The node's mark is the
 * index of that step.
 */
static CUresult lay_out_child(struct sim_exec *exec, struct sim_node *source, struct sim_node *node,
			      const size_t *deps, size_t count)
{
	size_t first = exec->count, leaves = 0;
	size_t *ends;
	CUresult err = lay_out(exec, source->child, node->child, deps, count);

	if (err)
		return err;
	ends = malloc((exec->count - first + count + 1) * sizeof(*ends));
	if (!ends)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = first; i < exec->count; i++)
		if (exec->steps[i].leaf)
			ends[leaves++] = i;
	if (exec->count == first) { /* an empty child */
		if (count)
			memcpy(ends, deps, count * sizeof(*deps));
		leaves = count;
	}
	err = add_step(exec, source, NULL, ends, leaves);
	free(ends);
	return err;
}

/* placeable reports whether the steps of all dependencies of the node exist. */
static bool placeable(const struct sim_node *node)
{
	if (node->mark)
		return false;
	for (size_t i = 0; i < node->dep_count; i++)
		if (!node->deps[i]->mark)
			return false;
	return true;
}

static CUresult lay_out_node(struct sim_exec *exec, struct sim_node *source, struct sim_node *node,
			     const size_t *before, size_t before_count)
{
	size_t count = node->dep_count ? node->dep_count : before_count;
	size_t *deps = malloc((count + 1) * sizeof(*deps));
	CUresult err;

	if (!deps)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (node->dep_count)
		for (size_t i = 0; i < count; i++)
			deps[i] = node->deps[i]->mark - 1;
	else if (count)
		memcpy(deps, before, count * sizeof(*deps));
	if (node->type == CU_GRAPH_NODE_TYPE_GRAPH)
		err = lay_out_child(exec, source, node, deps, count);
	else
		err = add_step(exec, source, node, deps, count);
	free(deps);
	node->mark = exec->count; /* index of the node's end, plus one */
	return err;
}

/*
 * lay_out adds the steps in an order that satisfies all dependencies. Nodes of a cycle remain.
 */
static CUresult lay_out(struct sim_exec *exec, struct sim_graph *source, struct sim_graph *copy,
			const size_t *before, size_t before_count)
{
	size_t left = copy->count;
	bool progress = true;

	for (struct sim_node *node = copy->nodes; node; node = node->next)
		node->mark = 0;
	while (left && progress) {
		struct sim_node *from = source->nodes;

		progress = false;
		for (struct sim_node *node = copy->nodes; node; node = node->next, from = from->next) {
			CUresult err;

			if (!placeable(node))
				continue;
			err = lay_out_node(exec, from, node, before, before_count);
			if (err)
				return err;
			progress = true;
			left--;
		}
	}
	return left ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void free_exec(struct sim_exec *exec)
{
	for (size_t i = 0; i < exec->count; i++)
		free(exec->steps[i].deps);
	free(exec->steps);
	if (exec->graph)
		sim_graph_free(exec->graph);
	exec->magic = 0;
	free(exec);
}

/* load_kernels loads the code of kernels that no launch has loaded yet. */
static CUresult load_kernels(const struct sim_exec *exec)
{
	struct sim_function *function;
	CUresult err = CUDA_SUCCESS;

	for (size_t i = 0; !err && i < exec->count; i++) {
		const struct sim_node *node = exec->steps[i].node;

		if (!node || node->type != CU_GRAPH_NODE_TYPE_KERNEL)
			continue; /* a step may be the end of a child graph */
		err = sim_function_of(node->kernel.params.func, &function);
		err = err ? err : sim_module_use(function->module);
	}
	return err;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, uint64_t flags)
{
	struct sim_context *context;
	struct sim_graph *graph;
	struct sim_exec *exec;
	CUresult err = sim_graph_of(handle, &graph);

	if (!err)
		err = sim_current(&context);
	if (err)
		return err;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	exec = calloc(1, sizeof(*exec));
	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->magic = EXEC_MAGIC;
	exec->device = context->device;
	exec->flags = flags;
	exec->graph = sim_graph_copy(graph);
	err = exec->graph ? lay_out(exec, graph, exec->graph, NULL, 0) : CUDA_ERROR_OUT_OF_MEMORY;
	err = err ? err : load_kernels(exec);
	if (err) {
		free_exec(exec);
		return err;
	}
	exec->peak_bytes = sim_exec_peak(exec);
	*out = exec;
	return CUDA_SUCCESS;
}

/* ---- running ---- */

static CUresult put_kernel(const struct sim_node *node, const struct gs_ref *deps, size_t count,
			   struct gs_ref *ref)
{
	const CUDA_KERNEL_NODE_PARAMS *p = &node->kernel.params;
	const unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ};
	const unsigned block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
	struct gs_work work = {.kind = GS_ITEM_COMPUTE};
	struct sim_launch launch;
	CUresult err = sim_measure(node->kernel.device, p->func, grid, block, p->kernelParams, NULL, &launch);

	if (err)
		return err;
	work.duration_ns = launch.duration_ns;
	work.demand_ppm = launch.demand_ppm;
	work.traps = launch.traps;
	return sim_submit_after(node->kernel.device, &work, deps, count, ref);
}

static CUresult put_event(struct sim_exec *exec, const struct sim_node *node,
			  const struct gs_ref *deps, size_t count, struct gs_ref *ref)
{
	if (node->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
		return sim_submit_event_after(exec->device, node->event, deps, count, ref);
	return sim_submit_wait_after(exec->device, node->event, deps, count, ref);
}

static CUresult put_step(struct sim_exec *exec, const struct step *step, const struct gs_ref *deps,
			 size_t count, struct gs_ref *ref)
{
	const struct sim_node *node = step->node;
	struct gs_work work = {.kind = GS_ITEM_MARK};

	if (node && !node->disabled) {
		switch (node->type) {
		case CU_GRAPH_NODE_TYPE_KERNEL:
			return put_kernel(node, deps, count, ref);
		case CU_GRAPH_NODE_TYPE_MEMSET:
			work = sim_memset_work(exec->device, &node->memset);
			sim_memset_content(&node->memset);
			break;
		case CU_GRAPH_NODE_TYPE_MEMCPY:
			work = sim_copy_work(exec->device, &node->copy);
			sim_copy_content(&node->copy);
			break;
		case CU_GRAPH_NODE_TYPE_HOST:
			return sim_host_call_after(exec->device, node->host.fn, node->host.userData,
						   deps, count, ref);
		case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
			return put_event(exec, node, deps, count, ref);
		default:
			break;
		}
	}
	return sim_submit_after(exec->device, &work, deps, count, ref);
}

/* put_steps queues every step behind the stream's earlier work. */
static CUresult put_steps(struct sim_exec *exec, struct sim_stream *stream)
{
	struct gs_ref *refs = calloc(exec->count + 2, sizeof(*refs));
	struct gs_ref *deps = calloc(exec->count + 2, sizeof(*deps));
	size_t ends = 0;
	CUresult err = refs && deps ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	const struct gs_ref before[2] = {sim_stream_end(stream), exec->last};

	for (size_t i = 0; i < exec->count && !err; i++) {
		const struct step *step = &exec->steps[i];

		for (size_t d = 0; d < step->dep_count; d++)
			deps[d] = refs[step->deps[d]];
		if (step->dep_count)
			err = put_step(exec, step, deps, step->dep_count, &refs[i]);
		else
			err = put_step(exec, step, before, 2, &refs[i]);
	}
	for (size_t i = 0; i < exec->count && !err; i++)
		if (exec->steps[i].leaf)
			deps[ends++] = refs[i];
	if (!err)
		err = sim_submit_join(stream, deps, ends, &exec->last);
	free(refs);
	free(deps);
	return err;
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle, bool ptds)
{
	struct sim_stream *stream;
	struct sim_exec *exec;
	CUresult err = sim_exec_of(handle, &exec);

	if (!err)
		err = sim_stream_of(stream_handle, ptds, &stream);
	if (err)
		return err;
	if (sim_capturing(stream))
		return sim_capture_child(stream, exec->graph);
	err = sim_capture_enqueue_guard(stream);
	if (!err)
		err = sim_limits_take(stream->context);
	if (err)
		return err;
	sim_lock();
	err = sim_exec_take_memory(exec);
	sim_unlock();
	if (err)
		return err;
	sim_queue_lock();
	err = put_steps(exec, stream);
	sim_queue_unlock();
	return err;
}

CU_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch(exec, stream, ptds))

static CUresult upload(CUgraphExec handle, CUstream stream_handle, bool ptds)
{
	struct sim_stream *stream;
	struct sim_exec *exec;
	CUresult err = sim_exec_of(handle, &exec);

	if (!err)
		err = sim_stream_of(stream_handle, ptds, &stream);
	if (err)
		return err;
	sim_lock();
	err = sim_graph_memory_reserve(exec->device, exec->peak_bytes);
	sim_unlock();
	return err;
}

CU_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), upload(exec, stream, ptds))

/* ---- the entry points of instantiation ---- */

CU_API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *node, char *log,
				   size_t size)
{
	if (node)
		*node = NULL;
	if (log && size)
		*log = '\0';
	return instantiate(out, graph, 0);
}

CU_API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *node, char *log,
				      size_t size)
{
	return cuGraphInstantiate(out, graph, node, log, size);
}

CU_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
	return flags & ~15ull ? CUDA_ERROR_INVALID_VALUE : instantiate(out, graph, flags);
}

static CUresult with_params(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params,
			    bool ptds)
{
	CUresult err;

	if (!params || params->flags & ~15ull)
		return CUDA_ERROR_INVALID_VALUE;
	err = instantiate(out, graph, params->flags);
	params->hErrNode_out = NULL;
	params->result_out = err ? 1 : 0;
	if (!err && params->flags & EXEC_UPLOAD)
		err = upload(*out, params->hUploadStream, ptds);
	return err;
}

CU_PTSZ(cuGraphInstantiateWithParams,
	(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
	with_params(out, graph, params, ptds))

CU_API CUresult cuGraphExecDestroy(CUgraphExec handle)
{
	struct sim_exec *exec;
	CUresult err = sim_exec_of(handle, &exec);

	if (!err)
		free_exec(exec);
	return err;
}

CU_API CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags)
{
	struct sim_exec *exec;
	CUresult err = sim_exec_of(handle, &exec);

	if (!err && !flags)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*flags = exec->flags;
	return err;
}

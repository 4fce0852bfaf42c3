// SPDX-License-Identifier: Apache-2.0

// This file handles memory nodes of graphs. A program adds memory nodes by cuGraphAddMemAllocNode,
// by cuGraphAddNode or by a capture. The interposer sums the nodes' memory when the graph becomes
// executable. A launch or an upload allocates this memory from the device's graph memory, which the
// driver keeps until a trim. The interposer therefore treats a device's graph memory as a pool
// (pool_held.h).

#include <stdlib.h>
#include <string.h>

#include "driver/handle.h"
#include "memory/claim.h"
#include "memory/graph.h"
#include "memory/pool.h"
#include "memory/pool_claim.h"
#include "memory/pool_held.h"
#include "time/place.h"
#include "time/throttle.h"

// An executable graph has one entry for each GPU that its nodes use. The key is the handle, with
// the GPU's index in the bits above the address. `bytes` is the memory that the graph needs on that
// GPU.
//
// A repeated launch needs no further memory while the graph owns the memory of its earlier launch.
// The graph owns that memory if the device's graph memory grew by that size at the launch, and has
// not shrunk since. A trim shrinks graph memory. A graph whose launch uses graph memory without
// growth also takes memory from other graphs. Each trim, and each launch without growth, begins a
// new epoch. `extra` is the epoch in which the graph took its memory, plus one. During a repeated
// launch, the graph's memory is reserved for that launch.
static uint64_t vg_graph_key(CUgraphExec graph, uint32_t device)
{
	return vg_handle_key(graph) | (uint64_t)device << 48;
}

// vg_graph_file_gpus files the GPUs that the graph's nodes use. Every use is filed, because the
// program may launch the graph on a stream of another GPU.
static bool vg_graph_file_gpus(struct vg_state *state, CUgraphExec graph, uint32_t gpus)
{
	struct vg_entry *entry = gpus ? calloc(1, sizeof *entry) : NULL;

	if (!entry)
		return !gpus;
	*entry = (struct vg_entry){.kind = VG_GPUS, .key = vg_handle_key(graph), .extra = gpus};
	vg_table_put(&state->table, entry);
	return true;
}

// vg_graph_gpus returns a bit mask of the GPUs that a graph uses, or 0 in a container with one GPU.
static uint32_t vg_graph_gpus(CUgraphExec graph)
{
	struct vg_state *state = vg_state_ready();
	struct vg_entry entry;

	if (!state || state->pages.device_count < 2 ||
	    !vg_table_get(&state->table, VG_GPUS, vg_handle_key(graph), &entry))
		return 0;
	return (uint32_t)entry.extra;
}

static bool vg_graph_file(struct vg_state *state, CUgraphExec graph,
			  const struct vg_graph_needs *needs)
{
	if (!vg_graph_file_gpus(state, graph, needs->gpus))
		return false;
	for (uint32_t i = 0; i < VG_MAX_DEVICES; i++) {
		struct vg_entry *entry;

		if (!needs->bytes[i])
			continue;
		entry = calloc(1, sizeof *entry);
		if (!entry)
			return false;
		*entry = (struct vg_entry){.kind = VG_GRAPH, .device = i, .key = vg_graph_key(graph, i),
					   .bytes = needs->bytes[i]};
		vg_table_put(&state->table, entry);
		atomic_fetch_add(&state->graphs, 1);
	}
	return true;
}

static void vg_graph_forget(struct vg_state *state, CUgraphExec graph)
{
	free(vg_table_take(&state->table, VG_GPUS, vg_handle_key(graph)));
	for (uint32_t i = 0; i < VG_MAX_DEVICES && atomic_load(&state->graphs); i++) {
		struct vg_entry *entry = vg_table_take(&state->table, VG_GRAPH, vg_graph_key(graph, i));

		if (entry)
			atomic_fetch_sub(&state->graphs, 1);
		free(entry);
	}
}

// vg_graph_made files the entries of a new executable graph. If vg_graph_made cannot file the
// entries, vg_graph_made destroys the graph.
static CUresult vg_graph_made(CUresult result, CUgraphExec *exec, struct vg_graph_needs *needs)
{
	struct vg_state *state = vg_state_ready();

	result = vg_use_end(&needs->use, result);
	if (result || !state)
		return result;
	if (!needs->foreign && vg_graph_file(state, *exec, needs))
		return result;
	vg_graph_forget(state, *exec);
	VG_CALL(cuGraphExecDestroy, *exec);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

#define VG_INSTANTIATE(exec, graph, call)                                              \
	({                                                                             \
		struct vg_graph_needs needs_;                                          \
		CUresult looked_ = vg_graph_look(graph, &needs_);                      \
                                                                                       \
		looked_ ? looked_ : vg_graph_made(call, exec, &needs_);                \
	})

VG_API(cuGraphInstantiate, CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
	return VG_INSTANTIATE(exec, graph, VG_CALL(cuGraphInstantiate, exec, graph, node, log, size));
}

VG_API(cuGraphInstantiate_v2, CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
       size_t size)
{
	return VG_INSTANTIATE(exec, graph, VG_CALL(cuGraphInstantiate_v2, exec, graph, node, log, size));
}

VG_API(cuGraphInstantiateWithFlags, CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	return VG_INSTANTIATE(exec, graph, VG_CALL(cuGraphInstantiateWithFlags, exec, graph, flags));
}

// ---- updates of an executable graph, which cannot add memory nodes

#define VG_UPDATE(graph, call)                                                           \
	({                                                                               \
		struct vg_graph_needs needs_;                                            \
		CUresult looked_ = vg_graph_look(graph, &needs_);                        \
                                                                                         \
		looked_ ? looked_ : vg_use_end(&needs_.use, call);                       \
	})

VG_API(cuGraphExecUpdate, CUgraphExec exec, CUgraph graph, CUgraphNode *node, int *outcome)
{
	return VG_UPDATE(graph, VG_CALL(cuGraphExecUpdate, exec, graph, node, outcome));
}

VG_API(cuGraphExecUpdate_v2, CUgraphExec exec, CUgraph graph, void *outcome)
{
	return VG_UPDATE(graph, VG_CALL(cuGraphExecUpdate_v2, exec, graph, outcome));
}

VG_API(cuGraphExecKernelNodeSetParams, CUgraphExec exec, CUgraphNode node, const void *parameters)
{
	const struct vg_kernel_params *given = parameters;

	return VG_USE(given ? given->function : NULL,
		      VG_CALL(cuGraphExecKernelNodeSetParams, exec, node, parameters));
}

VG_API(cuGraphExecKernelNodeSetParams_v2, CUgraphExec exec, CUgraphNode node, const void *parameters)
{
	return VG_USE(parameters ? vg_kernel_function(parameters) : NULL,
		      VG_CALL(cuGraphExecKernelNodeSetParams_v2, exec, node, parameters));
}

// vg_instantiate_params is the used part of CUDA_GRAPH_INSTANTIATE_PARAMS, which can request an
// upload of the new graph.
struct vg_instantiate_params {
	uint64_t flags;
	CUstream upload_stream;
};

enum { vg_instantiate_upload = 2 };

static CUresult vg_graph_start(CUgraphExec exec, CUstream stream,
			       CUresult (*call)(CUgraphExec exec, CUstream stream));
static CUresult vg_call_upload(CUgraphExec exec, CUstream stream);

// vg_instantiate_split creates the graph without the upload. vg_instantiate_split uploads the graph
// when the graph's memory needs are known.
static CUresult vg_instantiate_split(CUgraphExec *exec, CUgraph graph, void *params,
				     CUresult (*call)(CUgraphExec *exec, CUgraph graph, void *params))
{
	struct vg_instantiate_params *asked = params;
	bool upload = params && asked->flags & vg_instantiate_upload;
	CUresult result;

	if (upload)
		asked->flags &= ~(uint64_t)vg_instantiate_upload;
	result = VG_INSTANTIATE(exec, graph, call(exec, graph, params));
	if (!upload)
		return result;
	asked->flags |= vg_instantiate_upload;
	if (result)
		return result;
	return vg_graph_start(*exec, asked->upload_stream, vg_call_upload);
}

static CUresult vg_call_with_params(CUgraphExec *exec, CUgraph graph, void *params)
{
	return VG_CALL(cuGraphInstantiateWithParams, exec, graph, params);
}

static CUresult vg_call_with_params_ptsz(CUgraphExec *exec, CUgraph graph, void *params)
{
	return VG_CALL(cuGraphInstantiateWithParams_ptsz, exec, graph, params);
}

VG_API(cuGraphInstantiateWithParams, CUgraphExec *exec, CUgraph graph, void *params)
{
	return vg_instantiate_split(exec, graph, params, vg_call_with_params);
}

VG_API(cuGraphInstantiateWithParams_ptsz, CUgraphExec *exec, CUgraph graph, void *params)
{
	return vg_instantiate_split(exec, graph, params, vg_call_with_params_ptsz);
}

static struct vg_entry *vg_graph_owns(struct vg_entry *entry, void *context)
{
	const uint64_t *epoch = context;

	if (entry)
		entry->extra = *epoch + 1;
	return entry;
}

// vg_graph_claims holds the claims of one launch, one per GPU.
struct vg_graph_claims {
	struct vg_claim claims[VG_MAX_DEVICES];
	uint64_t needs[VG_MAX_DEVICES];       // 0: no claim was made
	struct vg_pool *kept[VG_MAX_DEVICES]; // set if the graph owns all memory that it needs
	uint64_t owned[VG_MAX_DEVICES];
	uint64_t epoch; // the epoch before the first claim
};

static void vg_graph_settle(struct vg_state *state, CUgraphExec exec, struct vg_graph_claims *claims,
			    CUresult result)
{
	bool alone = atomic_load(&state->graph_calls) == 1;

	for (uint32_t i = 0; i < VG_MAX_DEVICES; i++) {
		if (claims->kept[i])
			vg_pool_claim_kept(state, claims->kept[i], claims->owned[i]);
		if (!claims->needs[i])
			continue;
		// The interposer cannot undo a launch, and charges memory that the launch took
		// beyond its claim.
		vg_pool_claim_settle(&claims->claims[i], result);
		if (alone && claims->claims[i].call.grown >= claims->needs[i])
			vg_table_with(&state->table, VG_GRAPH, vg_graph_key(exec, i), vg_graph_owns,
				      &claims->epoch);
		else
			atomic_fetch_add(&state->graph_epoch, 1);
	}
}

// vg_graph_claim_one claims the memory that the graph needs on one GPU.
static CUresult vg_graph_claim_one(struct vg_state *state, const struct vg_entry *entry,
				   struct vg_graph_claims *claims)
{
	uint32_t device = entry->device;
	struct vg_pool *pool = vg_pool_of(state, NULL, vg_state_ordinal(state, device));
	CUresult result;

	if (!pool)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (entry->extra && vg_pool_claim_keep(state, pool, entry->bytes, entry->extra - 1)) {
		claims->kept[device] = pool;
		claims->owned[device] = entry->bytes;
		return CUDA_SUCCESS;
	}
	result = vg_pool_claim(&claims->claims[device], pool, VG_WAY_GRAPH, entry->bytes);
	if (!result)
		claims->needs[device] = entry->bytes;
	return result;
}

static CUresult vg_graph_claim(struct vg_state *state, CUgraphExec exec,
			       struct vg_graph_claims *claims)
{
	CUresult result = CUDA_SUCCESS;

	claims->epoch = atomic_load(&state->graph_epoch);
	for (uint32_t i = 0; i < VG_MAX_DEVICES && !result; i++) {
		struct vg_entry entry;

		if (vg_table_get(&state->table, VG_GRAPH, vg_graph_key(exec, i), &entry))
			result = vg_graph_claim_one(state, &entry, claims);
	}
	if (result)
		vg_graph_settle(state, exec, claims, result);
	return result;
}

// vg_graph_start launches or uploads a graph.
static CUresult vg_graph_start(CUgraphExec exec, CUstream stream,
			       CUresult (*call)(CUgraphExec exec, CUstream stream))
{
	struct vg_state *state = vg_state_ready();
	struct vg_graph_claims claims;
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!atomic_load(&state->graphs))
		return call(exec, stream);
	atomic_fetch_add(&state->graph_calls, 1);
	memset(claims.needs, 0, sizeof claims.needs);
	memset(claims.kept, 0, sizeof claims.kept);
	result = vg_graph_claim(state, exec, &claims);
	if (!result) {
		result = call(exec, stream);
		vg_graph_settle(state, exec, &claims, result);
	}
	atomic_fetch_sub(&state->graph_calls, 1);
	return result;
}

static CUresult vg_call_launch(CUgraphExec exec, CUstream stream)
{
	return VG_CALL(cuGraphLaunch, exec, stream);
}

static CUresult vg_call_launch_ptsz(CUgraphExec exec, CUstream stream)
{
	return VG_CALL(cuGraphLaunch_ptsz, exec, stream);
}

static CUresult vg_call_upload(CUgraphExec exec, CUstream stream)
{
	return VG_CALL(cuGraphUpload, exec, stream);
}

static CUresult vg_call_upload_ptsz(CUgraphExec exec, CUstream stream)
{
	return VG_CALL(cuGraphUpload_ptsz, exec, stream);
}

// vg_graph_prior is the assumed length of a graph whose first launch has not been measured, in ns.
static const uint64_t vg_graph_prior = 500000;

static uint64_t vg_graph_work(CUgraphExec exec)
{
	return vg_work_key(vg_handle_key(exec), VG_GRAPH);
}

VG_API(cuGraphLaunch, CUgraphExec exec, CUstream stream)
{
	VG_WORK_ON(vg_graph_gpus(exec), vg_graph_work(exec), vg_graph_prior, stream, false,
		   vg_graph_start(exec, stream, vg_call_launch));
}

VG_API(cuGraphLaunch_ptsz, CUgraphExec exec, CUstream stream)
{
	VG_WORK_ON(vg_graph_gpus(exec), vg_graph_work(exec), vg_graph_prior, stream, true,
		   vg_graph_start(exec, stream, vg_call_launch_ptsz));
}

VG_API(cuGraphUpload, CUgraphExec exec, CUstream stream)
{
	return vg_graph_start(exec, stream, vg_call_upload);
}

VG_API(cuGraphUpload_ptsz, CUgraphExec exec, CUstream stream)
{
	return vg_graph_start(exec, stream, vg_call_upload_ptsz);
}

VG_API(cuGraphExecDestroy, CUgraphExec exec)
{
	struct vg_state *state = vg_state_ready();

	// The entries are removed first, because the driver may reuse the handle at once. The
	// driver refuses the call only if the graph does not exist.
	if (state) {
		vg_graph_forget(state, exec);
		vg_throttle_forget(state, vg_graph_work(exec));
	}
	return VG_CALL(cuGraphExecDestroy, exec);
}

VG_API(cuDeviceGraphMemTrim, CUdevice device)
{
	struct vg_state *state = vg_state_ready();
	CUresult result;

	if (state)
		atomic_fetch_add(&state->graph_epoch, 1);
	result = VG_CALL(cuDeviceGraphMemTrim, device);
	if (state)
		vg_pool_held_refresh(state);
	return result;
}

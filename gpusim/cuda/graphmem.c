// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements memory of graphs. A device has one reserve for all
 * graphs of a process. The reserve grows when a graph is uploaded or launched,
 * and shrinks only when trimmed.
 */
#include "exec.h"

#define STEP_BYTES (UINT64_C(2) << 20)
#define LIVE 1u /* sim_alloc.flags of a graph's allocation */

/* part returns the bytes that a graph's allocation takes from the reserve. */
static uint64_t part(uint64_t size)
{
	return round_up(size, 512);
}

static const struct step *allocation_of(const struct sim_exec *exec, CUdeviceptr address)
{
	for (size_t i = 0; i < exec->count; i++) {
		const struct sim_node *node = exec->steps[i].node;

		if (node && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->alloc.dptr == address)
			return &exec->steps[i];
	}
	return NULL;
}

uint64_t sim_exec_peak(const struct sim_exec *exec)
{
	uint64_t now = 0, peak = 0;

	for (size_t i = 0; i < exec->count; i++) {
		const struct sim_node *node = exec->steps[i].node;
		const struct step *freed;

		if (node && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			now += part(node->alloc.bytesize);
		freed = node && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE ? allocation_of(exec, node->free) : NULL;
		if (freed)
			now -= part(freed->node->alloc.bytesize);
		if (now > peak)
			peak = now;
	}
	return peak;
}

CUresult sim_graph_memory_reserve(struct sim_device *device, uint64_t peak)
{
	uint64_t target = round_up(device->graph_used + peak, STEP_BYTES);
	CUresult err;

	if (target > device->graph_reserved) {
		err = sim_charge(device, target - device->graph_reserved);
		if (err == CUDA_ERROR_OUT_OF_MEMORY) {
			sim_pools_trim(device, true);
			err = sim_charge(device, target - device->graph_reserved);
		}
		if (err)
			return err;
		device->graph_reserved = target;
	}
	if (device->graph_reserved > device->graph_reserved_high)
		device->graph_reserved_high = device->graph_reserved;
	if (device->graph_used + peak > device->graph_used_high)
		device->graph_used_high = device->graph_used + peak;
	return CUDA_SUCCESS;
}

static bool is_live(CUdeviceptr address)
{
	const struct sim_alloc *alloc = sim_alloc_exact(address);

	return alloc && alloc->kind == ALLOC_GRAPH && alloc->flags & LIVE;
}

bool sim_graph_memory_free(struct sim_alloc *alloc)
{
	if (!(alloc->flags & LIVE))
		return false;
	alloc->flags &= ~LIVE;
	alloc->device->graph_used -= part(alloc->size);
	return true;
}

static void set_live(CUdeviceptr address)
{
	struct sim_alloc *alloc = sim_alloc_exact(address);

	if (!alloc || alloc->flags & LIVE)
		return;
	alloc->flags |= LIVE;
	alloc->device->graph_used += part(alloc->size);
}

/*
 * any_live reports whether a launch would allocate memory that an earlier launch left allocated.
 */
static bool any_live(const struct sim_exec *exec)
{
	for (size_t i = 0; i < exec->count; i++) {
		const struct sim_node *node = exec->steps[i].node;

		if (node && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && is_live(node->alloc.dptr))
			return true;
	}
	return false;
}

void sim_exec_free_memory(struct sim_exec *exec)
{
	for (size_t i = 0; i < exec->count; i++) {
		const struct sim_node *node = exec->steps[i].node;

		if (node && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && is_live(node->alloc.dptr))
			(void)sim_graph_memory_free(sim_alloc_exact(node->alloc.dptr));
	}
}

CUresult sim_exec_take_memory(struct sim_exec *exec)
{
	CUresult err;

	if (any_live(exec)) {
		if (!(exec->flags & EXEC_AUTO_FREE))
			return CUDA_ERROR_INVALID_VALUE;
		sim_exec_free_memory(exec);
	}
	if (exec->peak_bytes) {
		err = sim_graph_memory_reserve(exec->device, exec->peak_bytes);
		if (err)
			return err;
	}
	for (size_t i = 0; i < exec->count; i++) {
		const struct sim_node *node = exec->steps[i].node;

		if (node && node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
			set_live(node->alloc.dptr);
		if (node && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && is_live(node->free))
			(void)sim_graph_memory_free(sim_alloc_exact(node->free));
	}
	return CUDA_SUCCESS;
}

/* ---- attributes and trimming ---- */

static uint64_t *attribute_of(struct sim_device *device, int attribute)
{
	switch (attribute) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
		return &device->graph_used;
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
		return &device->graph_used_high;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
		return &device->graph_reserved;
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		return &device->graph_reserved_high;
	default:
		return NULL;
	}
}

CU_API CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void *value)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!value || !attribute_of(device, attribute))
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	*(cuuint64_t *)value = *attribute_of(device, attribute);
	sim_unlock();
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, int attribute, void *value)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!value || *(cuuint64_t *)value != 0)
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
		device->graph_used_high = device->graph_used;
	else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
		device->graph_reserved_high = device->graph_reserved;
	else
		err = CUDA_ERROR_INVALID_VALUE;
	sim_unlock();
	return err;
}

CU_API CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
	struct sim_device *device;
	uint64_t keep;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	sim_lock();
	keep = round_up(device->graph_used, STEP_BYTES);
	if (device->graph_reserved > keep) {
		sim_uncharge(device, device->graph_reserved - keep);
		device->graph_reserved = keep;
	}
	sim_unlock();
	return CUDA_SUCCESS;
}

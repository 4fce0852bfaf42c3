// SPDX-License-Identifier: Apache-2.0
/* This file fills in graph nodes, with copies of the data behind the pointers. */
#include "graph.h"

#include "module.h"

#include <stdlib.h>
#include <string.h>

/*
 * copy_values copies every parameter's value, from pointers or packed buffer, into one buffer.
 */
static CUresult copy_values(struct kernel_node *kernel, const struct ptx_entry *entry,
			    const CUDA_KERNEL_NODE_PARAMS *p)
{
	const unsigned char *packed = NULL;

	kernel->values = calloc(1, entry->param_bytes + 8);
	kernel->pointers = calloc(entry->param_count + 1, sizeof(void *));
	if (!kernel->values || !kernel->pointers)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (void **extra = p->extra; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			packed = extra[1];
	for (uint32_t i = 0; i < entry->param_count; i++) {
		const struct ptx_param *param = &entry->params[i];
		const void *from = p->kernelParams ? p->kernelParams[i] :
				   packed	   ? packed + param->offset :
						     NULL;

		if (!from)
			return CUDA_ERROR_INVALID_VALUE;
		kernel->pointers[i] = kernel->values + param->offset;
		memcpy(kernel->pointers[i], from, param->size);
	}
	return CUDA_SUCCESS;
}

static CUresult kernel_device(const struct sim_function *function, CUcontext handle,
			      struct sim_device **device)
{
	struct sim_context *context = function->module->context;
	CUresult err = context ? CUDA_SUCCESS : sim_context_of(handle, &context);

	if (!err)
		*device = context->device;
	return err;
}

CUresult sim_node_set_kernel(struct sim_node *node, const CUDA_KERNEL_NODE_PARAMS *params)
{
	struct kernel_node kernel = {.params = *params};
	struct sim_function *function;
	CUresult err = sim_function_of(params->func ? params->func : params->kern, &function);

	if (!err)
		err = kernel_device(function, params->ctx, &kernel.device);
	if (!err && node->kernel.device && node->kernel.device != kernel.device)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		err = copy_values(&kernel, function->entry, params);
	if (err) {
		free(kernel.values);
		free(kernel.pointers);
		return err;
	}
	free(node->kernel.values);
	free(node->kernel.pointers);
	kernel.params.func = function;
	kernel.params.kernelParams = function->entry->param_count ? kernel.pointers : NULL;
	kernel.params.extra = NULL;
	node->kernel = kernel;
	return CUDA_SUCCESS;
}

/*
 * sim_node_set_alloc fixes the address of an allocation node. Launches allocate and free the
 * memory. The driver never reuses the address, because executable graphs may outlive this graph.
 */
CUresult sim_node_set_alloc(struct sim_node *node, uint64_t size, CUdevice ordinal,
			    CUdeviceptr *address)
{
	struct sim_device *device;
	struct sim_alloc *alloc;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	alloc = sim_alloc_new(ALLOC_GRAPH, size, 0);
	if (alloc) {
		alloc->device = device;
		*address = alloc->address;
	}
	sim_unlock();
	if (!alloc)
		return CUDA_ERROR_OUT_OF_MEMORY;
	node->alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	node->alloc.poolProps.location.id = ordinal;
	node->alloc.bytesize = size;
	node->alloc.dptr = *address;
	return CUDA_SUCCESS;
}

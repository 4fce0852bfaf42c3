// SPDX-License-Identifier: Apache-2.0
/* This file implements green contexts, which are separate contexts with separate memory. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define GREEN_MAGIC 0x4752454eU
#define RESOURCE_SM 1
#define SM_GROUP 8u /* SMs come in groups of this many */

struct sim_green {
	uint32_t magic;
	struct sim_context *context;
	CUdevResource resource;
};

/* description is the resource descriptor that cuDevResourceGenerateDesc() creates. */
struct description {
	uint32_t magic;
	CUdevResource resource;
};

static CUresult green_of(CUgreenCtx handle)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	return handle && handle->magic == GREEN_MAGIC ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult whole(const struct sim_device *device, CUdevResource *resource, int type)
{
	if (!resource)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != RESOURCE_SM)
		return CUDA_ERROR_NOT_SUPPORTED;
	memset(resource, 0, sizeof(*resource));
	resource->type = RESOURCE_SM;
	resource->smCount = sim_mps_sms(sim_gpu(device));
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource *resource, int type)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	return err ? err : whole(device, resource, type);
}

CU_API CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource *resource, int type)
{
	struct sim_context *context;
	CUresult err = sim_context_of(handle, &context);

	if (err)
		return err;
	if (!context->green)
		return whole(context->device, resource, type);
	if (!resource || type != RESOURCE_SM)
		return CUDA_ERROR_INVALID_VALUE;
	*resource = context->green->resource;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDevSmResourceSplitByCount(CUdevResource *out, unsigned *groups,
					    const CUdevResource *input, CUdevResource *rest,
					    unsigned flags, unsigned minimum)
{
	unsigned size, fitting;

	if (!groups || !input || input->type != RESOURCE_SM || flags & ~3u)
		return CUDA_ERROR_INVALID_VALUE;
	size = (unsigned)round_up(minimum ? minimum : 1, SM_GROUP);
	fitting = input->smCount / size;
	if (fitting == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!out) {
		*groups = fitting;
		return CUDA_SUCCESS;
	}
	if (*groups > fitting)
		*groups = fitting;
	for (unsigned i = 0; i < *groups; i++) {
		out[i] = *input;
		out[i].smCount = size;
	}
	if (rest) {
		*rest = *input;
		rest->smCount = input->smCount - *groups * size;
	}
	return CUDA_SUCCESS;
}

CU_API CUresult cuDevResourceGenerateDesc(struct description **out, CUdevResource *list, unsigned count)
{
	struct description *description;

	if (!out || !list || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	description = calloc(1, sizeof(*description));
	if (!description)
		return CUDA_ERROR_OUT_OF_MEMORY;
	description->magic = GREEN_MAGIC;
	description->resource = list[0];
	for (unsigned i = 1; i < count; i++)
		description->resource.smCount += list[i].smCount;
	*out = description;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGreenCtxCreate(CUgreenCtx *out, struct description *description, CUdevice ordinal,
				 unsigned flags)
{
	struct sim_device *device;
	struct sim_green *green;
	CUresult err = sim_device(ordinal, &device);

	(void)flags;
	if (err)
		return err;
	if (!out || !description || description->magic != GREEN_MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	green = calloc(1, sizeof(*green));
	if (!green)
		return CUDA_ERROR_OUT_OF_MEMORY;
	err = sim_context_new(device, 0, &green->context);
	if (err) {
		free(green);
		return err;
	}
	green->magic = GREEN_MAGIC;
	green->resource = description->resource;
	green->context->green = green;
	*out = green;
	return CUDA_SUCCESS;
}

CU_API CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
	CUresult err = green_of(handle);

	if (err)
		return err;
	sim_context_end(handle->context);
	handle->context->green = NULL;
	handle->magic = 0;
	free(handle);
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx handle)
{
	CUresult err = green_of(handle);

	if (!err && !out)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*out = handle->context;
	return err;
}

CU_API CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource *resource, int type)
{
	CUresult err = green_of(handle);

	if (!err && (!resource || type != RESOURCE_SM))
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*resource = handle->resource;
	return err;
}

CU_API CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx handle, unsigned flags, int priority)
{
	CUresult err = green_of(handle);

	if (!err && (!out || flags != CU_STREAM_NON_BLOCKING))
		err = CUDA_ERROR_INVALID_VALUE;
	return err ? err : sim_stream_new(handle->context, flags, priority, out);
}

CU_API CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long *id)
{
	CUresult err = green_of(handle);

	if (!err && !id)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*id = handle->context->id;
	return err;
}

// SPDX-License-Identifier: Apache-2.0
/* This file implements arrays of one to three dimensions, layered, cubic and mipmapped. */
#include "array.h"

#include <stdlib.h>

#define ARRAY_MAGIC 0x41525259U
#define FLAG_SPARSE 0x40u
#define FLAG_DEFERRED 0x80u
#define LEVELS_MAX 32

size_t sim_format_bytes(unsigned format)
{
	switch (format) {
	case 0x01: /* 8 bits, unsigned and signed */
	case 0x08:
		return 1;
	case 0x02: /* 16 bits, half */
	case 0x09:
	case 0x10:
		return 2;
	case 0x03: /* 32 bits, float */
	case 0x0a:
	case 0x20:
		return 4;
	default:
		return 0;
	}
}

static uint64_t or_one(uint64_t value)
{
	return value ? value : 1;
}

static uint64_t volume(const CUDA_ARRAY3D_DESCRIPTOR *shape, size_t element)
{
	return shape->Width * or_one(shape->Height) * or_one(shape->Depth) * element;
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *shape, size_t *element)
{
	unsigned channels = shape->NumChannels;

	*element = sim_format_bytes(shape->Format) * channels;
	if (*element == 0 || (channels != 1 && channels != 2 && channels != 4))
		return CUDA_ERROR_INVALID_VALUE;
	if (shape->Width == 0 || (shape->Depth && !shape->Height && !(shape->Flags & 1)))
		return CUDA_ERROR_INVALID_VALUE;
	if (shape->Width > 1u << 20 || shape->Height > 1u << 20 || shape->Depth > 1u << 20)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult sim_array_of(CUarray handle, struct sim_array **array)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle || handle->magic != ARRAY_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	*array = handle;
	return CUDA_SUCCESS;
}

/*
 * take_memory allocates memory for an array. Sparse and deferred arrays get memory by mapping.
 */
static CUresult take_memory(struct sim_array *array, uint64_t bytes)
{
	bool mapped = array->shape.Flags & (FLAG_SPARSE | FLAG_DEFERRED);
	uint64_t charged = mapped ? 0 : round_up(bytes, 512);
	struct sim_alloc *alloc;
	CUresult err = charged ? sim_charge(array->context->device, charged) : CUDA_SUCCESS;

	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_new(ALLOC_ARRAY, bytes, 0);
	if (alloc) {
		alloc->device = array->context->device;
		alloc->context = array->context;
		alloc->charged = charged;
		array->address = alloc->address;
	}
	sim_unlock();
	if (alloc)
		return CUDA_SUCCESS;
	if (charged)
		sim_uncharge(array->context->device, charged);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult new_array(const CUDA_ARRAY3D_DESCRIPTOR *shape, struct sim_array **out)
{
	struct sim_context *context;
	struct sim_array *array;
	size_t element = 0;
	CUresult err = sim_current(&context);

	if (!err)
		err = sim_capture_guard();
	if (!err)
		err = check(shape, &element);
	if (err)
		return err;
	array = calloc(1, sizeof(*array));
	if (!array)
		return CUDA_ERROR_OUT_OF_MEMORY;
	array->magic = ARRAY_MAGIC;
	array->context = context;
	array->shape = *shape;
	array->element = element;
	*out = array;
	return CUDA_SUCCESS;
}

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	struct sim_array *array;
	CUresult err = out ? new_array(shape, &array) : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	err = take_memory(array, volume(&array->shape, array->element));
	if (err)
		free(array);
	else
		*out = array;
	return err;
}

CU_API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {0};

	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	shape.Width = d->Width;
	shape.Height = d->Height;
	shape.Format = d->Format;
	shape.NumChannels = d->NumChannels;
	return create(out, &shape);
}

CU_API CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
	CUDA_ARRAY_DESCRIPTOR wide;

	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_ARRAY_DESCRIPTOR){d->Width, d->Height, d->Format, d->NumChannels};
	return cuArrayCreate_v2(out, &wide);
}

CU_API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return d ? create(out, d) : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
	CUDA_ARRAY3D_DESCRIPTOR wide;

	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	wide = (CUDA_ARRAY3D_DESCRIPTOR){d->Width,	 d->Height,	 d->Depth,
					 d->Format, d->NumChannels, d->Flags};
	return create(out, &wide);
}

static CUresult destroy(struct sim_array *array)
{
	struct sim_alloc *alloc;

	sim_wait_context(array->context);
	sim_lock();
	alloc = sim_alloc_exact(array->address);
	if (alloc)
		sim_alloc_free(alloc);
	sim_unlock();
	array->magic = 0;
	free(array->levels);
	free(array);
	return CUDA_SUCCESS;
}

CU_API CUresult cuArrayDestroy(CUarray handle)
{
	struct sim_array *array;
	CUresult err = sim_array_of(handle, &array);

	if (!err && (array->mipmapped || array->level))
		err = CUDA_ERROR_INVALID_HANDLE;
	return err ? err : destroy(array);
}

/* ---- mipmapped arrays ---- */

static size_t halved(size_t value, unsigned level)
{
	return value ? (value >> level ? value >> level : 1) : 0;
}

static unsigned levels_of(const CUDA_ARRAY3D_DESCRIPTOR *shape, unsigned wanted)
{
	size_t longest = shape->Width > shape->Height ? shape->Width : shape->Height;
	unsigned most = 1;

	while (most < LEVELS_MAX && longest >> most)
		most++;
	return wanted < most ? wanted : most;
}

static uint64_t shape_levels(struct sim_array *array)
{
	uint64_t bytes = 0;

	for (unsigned l = 0; l < array->level_count; l++) {
		struct sim_array *level = &array->levels[l];

		*level = *array;
		level->levels = NULL;
		level->mipmapped = false;
		level->level = true;
		level->shape.Width = halved(array->shape.Width, l);
		level->shape.Height = halved(array->shape.Height, l);
		if (!(array->shape.Flags & 1)) /* layers keep their number */
			level->shape.Depth = halved(array->shape.Depth, l);
		level->address = bytes; /* relative until the array has memory */
		bytes += round_up(volume(&level->shape, level->element), 512);
	}
	return bytes;
}

CU_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d,
				       unsigned levels)
{
	struct sim_array *array;
	CUresult err = out && d && levels ? new_array(d, &array) : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	array->mipmapped = true;
	array->level_count = levels_of(d, levels);
	array->levels = calloc(array->level_count, sizeof(*array->levels));
	err = array->levels ? take_memory(array, shape_levels(array)) : CUDA_ERROR_OUT_OF_MEMORY;
	if (err) {
		free(array->levels);
		free(array);
		return err;
	}
	for (unsigned l = 0; l < array->level_count; l++)
		array->levels[l].address += array->address;
	*out = array;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned level)
{
	struct sim_array *array;
	CUresult err = sim_array_of(handle, &array);

	if (err)
		return err;
	if (!out || !array->mipmapped || level >= array->level_count)
		return CUDA_ERROR_INVALID_VALUE;
	*out = &array->levels[level];
	return CUDA_SUCCESS;
}

CU_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
	struct sim_array *array;
	CUresult err = sim_array_of(handle, &array);

	if (!err && !array->mipmapped)
		err = CUDA_ERROR_INVALID_HANDLE;
	return err ? err : destroy(array);
}

/* ---- queries ---- */

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray handle, CUdevice device)
{
	struct sim_array *array;
	uint64_t bytes = 0;
	CUresult err = sim_array_of(handle, &array);

	(void)device;
	if (err)
		return err;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned l = 0; l < array->level_count && array->mipmapped; l++)
		bytes += round_up(volume(&array->levels[l].shape, array->element), 512);
	if (!array->mipmapped)
		bytes = round_up(volume(&array->shape, array->element), 512);
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = bytes, .alignment = 512};
	return CUDA_SUCCESS;
}

CU_API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray array,
					     CUdevice device)
{
	return requirements(out, array, device);
}

CU_API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out,
						      CUmipmappedArray array, CUdevice device)
{
	return requirements(out, array, device);
}

CU_API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray handle)
{
	struct sim_array *array;
	CUresult err = sim_array_of(handle, &array);

	if (!err && !out)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*out = array->shape;
	return err;
}

CU_API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray handle)
{
	struct sim_array *array;
	CUresult err = sim_array_of(handle, &array);

	if (err)
		return err;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUDA_ARRAY_DESCRIPTOR){array->shape.Width, array->shape.Height, array->shape.Format,
				       array->shape.NumChannels};
	return CUDA_SUCCESS;
}

// SPDX-License-Identifier: Apache-2.0
/* This file implements texture and surface objects: views of arrays and linear memory for
 * kernels. */
#include "array.h"

#include <stdlib.h>

/* cuDeviceGetAttribute reports these limits. */
#define TEXTURE_ALIGNMENT 512
#define PITCH_ALIGNMENT 32
#define LINEAR_TEXELS_MAX (UINT64_C(1) << 28)
#define PITCH2D_WIDTH_MAX 131072
#define PITCH2D_HEIGHT_MAX 65000
#define PITCH2D_BYTES_MAX 2097120

#define SURFACE_LOAD_STORE 0x02u /* a flag of arrays */
#define FILTER_LINEAR 1
#define TEXTURE_FLAGS 0x73u /* CU_TRSF_… flags that cuTexObjectCreate documents */
#define VIEW_FORMATS 0x23

/* sim_texture is an object. The object's handle is its address. */
struct sim_texture {
	struct sim_texture *next;
	bool surface;
	bool viewed;
	CUDA_RESOURCE_DESC resource;
	CUDA_TEXTURE_DESC texture;
	CUDA_RESOURCE_VIEW_DESC view;
};

/* find looks up the current context's object of this kind, or returns CUDA_ERROR_INVALID_VALUE. */
static CUresult find(unsigned long long handle, bool surface, struct sim_context **context,
		     struct sim_texture ***link)
{
	CUresult err = sim_current(context);

	if (err)
		return err;
	for (*link = &(*context)->textures; **link; *link = &(**link)->next)
		if ((uintptr_t)**link == handle && (**link)->surface == surface)
			return CUDA_SUCCESS;
	return CUDA_ERROR_INVALID_VALUE;
}

/* ---- checks of resources ---- */

static bool texel_bytes(unsigned format, unsigned channels, size_t *bytes)
{
	*bytes = sim_format_bytes(format) * channels;
	return *bytes && (channels == 1 || channels == 2 || channels == 4);
}

/* is_memory reports whether one allocation contains the whole range. */
static bool is_memory(CUdeviceptr address, uint64_t size)
{
	const struct sim_alloc *alloc;
	bool within;

	sim_lock();
	alloc = sim_alloc_find(address);
	within = alloc && size <= alloc->address + alloc->size - address;
	sim_unlock();
	return within;
}

static CUresult check_linear(const CUDA_RESOURCE_DESC *desc)
{
	size_t bytes, size = desc->res.linear.sizeInBytes;

	if (!texel_bytes(desc->res.linear.format, desc->res.linear.numChannels, &bytes) ||
	    desc->res.linear.devPtr % TEXTURE_ALIGNMENT || size < bytes ||
	    size / bytes > LINEAR_TEXELS_MAX || !is_memory(desc->res.linear.devPtr, size))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult check_pitched(const CUDA_RESOURCE_DESC *desc)
{
	size_t bytes, width = desc->res.pitch2D.width, height = desc->res.pitch2D.height;
	size_t pitch = desc->res.pitch2D.pitchInBytes;

	if (!texel_bytes(desc->res.pitch2D.format, desc->res.pitch2D.numChannels, &bytes) ||
	    desc->res.pitch2D.devPtr % TEXTURE_ALIGNMENT || pitch % PITCH_ALIGNMENT ||
	    pitch > PITCH2D_BYTES_MAX || !width || !height || width > PITCH2D_WIDTH_MAX ||
	    height > PITCH2D_HEIGHT_MAX || width * bytes > pitch ||
	    !is_memory(desc->res.pitch2D.devPtr, pitch * (height - 1) + width * bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult check_array(CUarray handle, bool mipmapped, bool surface)
{
	struct sim_array *array;
	CUresult err = sim_array_of(handle, &array);

	if (err)
		return err;
	if (array->mipmapped != mipmapped || (surface && !(array->shape.Flags & SURFACE_LOAD_STORE)))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult check_resource(const CUDA_RESOURCE_DESC *desc, bool surface)
{
	if (desc->flags || (surface && desc->resType != CU_RESOURCE_TYPE_ARRAY))
		return CUDA_ERROR_INVALID_VALUE;
	switch (desc->resType) {
	case CU_RESOURCE_TYPE_ARRAY:
		return check_array(desc->res.array.hArray, false, surface);
	case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		return check_array(desc->res.mipmap.hMipmappedArray, true, false);
	case CU_RESOURCE_TYPE_LINEAR:
		return check_linear(desc);
	case CU_RESOURCE_TYPE_PITCH2D:
		return check_pitched(desc);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static bool is_sampling(const CUDA_TEXTURE_DESC *desc)
{
	for (int i = 0; i < 3; i++)
		if (desc->addressMode[i] < 0 || desc->addressMode[i] > 3)
			return false;
	return desc->filterMode >= 0 && desc->filterMode <= FILTER_LINEAR;
}

/*
 * check_texture ignores the address modes and the filter mode of linear memory. Any filter is valid
 * with any flags, including READ_AS_INTEGER.
 */
static CUresult check_texture(const CUDA_TEXTURE_DESC *desc, const CUDA_RESOURCE_DESC *resource)
{
	if (resource->resType != CU_RESOURCE_TYPE_LINEAR && !is_sampling(desc))
		return CUDA_ERROR_INVALID_VALUE;
	if (desc->mipmapFilterMode < 0 || desc->mipmapFilterMode > FILTER_LINEAR ||
	    desc->flags & ~TEXTURE_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* check_view checks a view. Only arrays may have a view that differs from their shape. */
static CUresult check_view(const CUDA_RESOURCE_VIEW_DESC *view, const CUDA_RESOURCE_DESC *resource)
{
	if (!view)
		return CUDA_SUCCESS;
	if (resource->resType != CU_RESOURCE_TYPE_ARRAY && resource->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	if (view->format < 0 || view->format >= VIEW_FORMATS ||
	    view->lastMipmapLevel < view->firstMipmapLevel || view->lastLayer < view->firstLayer)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* ---- objects ---- */

/* create adds a copy of the object to the current context. */
static CUresult create(unsigned long long *out, const struct sim_texture *object)
{
	struct sim_context *context;
	struct sim_texture *made;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	made = malloc(sizeof(*made));
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*made = *object;
	sim_lock();
	made->next = context->textures;
	context->textures = made;
	sim_unlock();
	*out = (uintptr_t)made;
	return CUDA_SUCCESS;
}

static CUresult destroy(unsigned long long handle, bool surface)
{
	struct sim_context *context;
	struct sim_texture **link, *object = NULL;
	CUresult err;

	sim_lock();
	err = find(handle, surface, &context, &link);
	if (!err) {
		object = *link;
		*link = object->next;
	}
	sim_unlock();
	free(object);
	return err;
}

static CUresult get(unsigned long long handle, bool surface, struct sim_texture *out)
{
	struct sim_context *context;
	struct sim_texture **link;
	CUresult err;

	sim_lock();
	err = find(handle, surface, &context, &link);
	if (!err)
		*out = **link;
	sim_unlock();
	return err;
}

void sim_textures_end(struct sim_context *context)
{
	sim_lock();
	while (context->textures) {
		struct sim_texture *object = context->textures;

		context->textures = object->next;
		free(object);
	}
	sim_unlock();
}

CU_API CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource,
				  const CUDA_TEXTURE_DESC *texture, const CUDA_RESOURCE_VIEW_DESC *view)
{
	struct sim_texture object = {.viewed = view};
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (!err && (!out || !resource || !texture))
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		err = check_resource(resource, false);
	if (!err)
		err = check_texture(texture, resource);
	if (!err)
		err = check_view(view, resource);
	if (err)
		return err;
	object.resource = *resource;
	object.texture = *texture;
	if (view)
		object.view = *view;
	return create(out, &object);
}

CU_API CUresult cuTexObjectDestroy(CUtexObject handle)
{
	return destroy(handle, false);
}

CU_API CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUtexObject handle)
{
	struct sim_texture object;
	CUresult err = get(handle, false, &object);

	if (!err && !out)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*out = object.resource;
	return err;
}

CU_API CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *out, CUtexObject handle)
{
	struct sim_texture object;
	CUresult err = get(handle, false, &object);

	if (!err && !out)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*out = object.texture;
	return err;
}

CU_API CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject handle)
{
	struct sim_texture object;
	CUresult err = get(handle, false, &object);

	if (!err && (!out || !object.viewed))
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*out = object.view;
	return err;
}

CU_API CUresult cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource)
{
	struct sim_texture object = {.surface = true};
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (!err && (!out || !resource))
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		err = check_resource(resource, true);
	if (err)
		return err;
	object.resource = *resource;
	return create(out, &object);
}

CU_API CUresult cuSurfObjectDestroy(CUsurfObject handle)
{
	return destroy(handle, true);
}

CU_API CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *out, CUsurfObject handle)
{
	struct sim_texture object;
	CUresult err = get(handle, true, &object);

	if (!err && !out)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		*out = object.resource;
	return err;
}

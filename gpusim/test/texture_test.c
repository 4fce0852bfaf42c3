// SPDX-License-Identifier: Apache-2.0
/*
 * This test covers texture and surface objects. The test checks the allowed resources, and that the
 * objects take no memory.
 */
#include "harness.h"

#include <string.h>
#include <unistd.h>

#define U8 1u
#define U32 3u
#define LOAD_STORE 2u

static CUresult create(CUtexObject *out, const CUDA_RESOURCE_DESC *resource)
{
	DRIVER(cuTexObjectCreate, CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *,
	       const CUDA_RESOURCE_VIEW_DESC *);
	CUDA_TEXTURE_DESC texture = {.addressMode = {1, 1, 1}};

	return cuTexObjectCreate(out, resource, &texture, NULL);
}

static CUDA_RESOURCE_DESC pitched(CUdeviceptr memory)
{
	CUDA_RESOURCE_DESC desc = {.resType = CU_RESOURCE_TYPE_PITCH2D};

	desc.res.pitch2D.devPtr = memory;
	desc.res.pitch2D.format = U8;
	desc.res.pitch2D.numChannels = 1;
	desc.res.pitch2D.width = 640;
	desc.res.pitch2D.height = 480;
	desc.res.pitch2D.pitchInBytes = 1024;
	return desc;
}

static void pitches(CUdeviceptr memory)
{
	DRIVER(cuTexObjectDestroy, CUtexObject);
	DRIVER(cuTexObjectGetResourceDesc, CUDA_RESOURCE_DESC *, CUtexObject);
	DRIVER(cuTexObjectGetTextureDesc, CUDA_TEXTURE_DESC *, CUtexObject);
	DRIVER(cuTexObjectGetResourceViewDesc, CUDA_RESOURCE_VIEW_DESC *, CUtexObject);
	DRIVER(cuSurfObjectDestroy, CUsurfObject);
	CUDA_RESOURCE_DESC desc = pitched(memory), back;
	CUDA_RESOURCE_VIEW_DESC view;
	CUDA_TEXTURE_DESC texture;
	CUtexObject object, other;

	OK(create(&object, &desc));
	OK(cuTexObjectGetResourceDesc(&back, object));
	CHECK(memcmp(&back, &desc, sizeof(desc)) == 0);
	OK(cuTexObjectGetTextureDesc(&texture, object));
	CHECK(texture.addressMode[2] == 1);
	CHECK(cuTexObjectGetResourceViewDesc(&view, object) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuSurfObjectDestroy(object) == CUDA_ERROR_INVALID_VALUE);
	desc.res.pitch2D.devPtr = memory + 256; /* not aligned */
	CHECK(create(&other, &desc) == CUDA_ERROR_INVALID_VALUE);
	desc = pitched(memory);
	desc.res.pitch2D.pitchInBytes = 1000;
	CHECK(create(&other, &desc) == CUDA_ERROR_INVALID_VALUE);
	desc = pitched(memory);
	desc.res.pitch2D.height = 1025; /* beyond the allocation's end */
	CHECK(create(&other, &desc) == CUDA_ERROR_INVALID_VALUE);
	desc = pitched(memory);
	desc.res.pitch2D.format = 77;
	CHECK(create(&other, &desc) == CUDA_ERROR_INVALID_VALUE);
	OK(cuTexObjectDestroy(object));
	CHECK(cuTexObjectDestroy(object) == CUDA_ERROR_INVALID_VALUE);
}

static void linear(CUdeviceptr memory)
{
	DRIVER(cuTexObjectCreate, CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *,
	       const CUDA_RESOURCE_VIEW_DESC *);
	DRIVER(cuTexObjectDestroy, CUtexObject);
	const CUDA_TEXTURE_DESC unread = {.addressMode = {9, -1, 9}, .filterMode = 9};
	CUDA_RESOURCE_DESC desc = {.resType = CU_RESOURCE_TYPE_LINEAR};
	CUtexObject object;

	desc.res.linear.devPtr = memory;
	desc.res.linear.format = U32;
	desc.res.linear.numChannels = 4;
	desc.res.linear.sizeInBytes = MIB;
	OK(create(&object, &desc));
	OK(cuTexObjectDestroy(object));
	OK(cuTexObjectCreate(&object, &desc, &unread, NULL));
	OK(cuTexObjectDestroy(object));
	desc.res.linear.numChannels = 3;
	CHECK(create(&object, &desc) == CUDA_ERROR_INVALID_VALUE);
	desc.res.linear.numChannels = 4;
	desc.res.linear.sizeInBytes = MIB + 16;
	CHECK(create(&object, &desc) == CUDA_ERROR_INVALID_VALUE);
}

static void arrays(void)
{
	DRIVER(cuArray3DCreate_v2, CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *);
	DRIVER(cuArrayDestroy, CUarray);
	DRIVER(cuTexObjectCreate, CUtexObject *, const CUDA_RESOURCE_DESC *, const CUDA_TEXTURE_DESC *,
	       const CUDA_RESOURCE_VIEW_DESC *);
	DRIVER(cuTexObjectDestroy, CUtexObject);
	DRIVER(cuTexObjectGetResourceViewDesc, CUDA_RESOURCE_VIEW_DESC *, CUtexObject);
	DRIVER(cuSurfObjectCreate, CUsurfObject *, const CUDA_RESOURCE_DESC *);
	DRIVER(cuSurfObjectDestroy, CUsurfObject);
	DRIVER(cuSurfObjectGetResourceDesc, CUDA_RESOURCE_DESC *, CUsurfObject);
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 64, .Height = 64, .Format = U32, .NumChannels = 1};
	CUDA_RESOURCE_VIEW_DESC view = {.width = 64, .height = 64, .lastLayer = 3}, back;
	CUDA_TEXTURE_DESC texture = {.filterMode = 1};
	CUDA_RESOURCE_DESC desc = {0}, got;
	CUtexObject object;
	CUsurfObject surface;
	CUarray array;

	OK(cuArray3DCreate_v2(&array, &shape));
	desc.res.array.hArray = array;
	OK(cuTexObjectCreate(&object, &desc, &texture, &view));
	OK(cuTexObjectGetResourceViewDesc(&back, object));
	CHECK(back.lastLayer == 3);
	OK(cuTexObjectDestroy(object));
	for (texture.flags = 1; texture.flags < 0x80; texture.flags <<= 1) {
		if (texture.flags & ~0x73u)
			continue;
		OK(cuTexObjectCreate(&object, &desc, &texture, NULL)); /* filtered, and read as integers */
		OK(cuTexObjectDestroy(object));
	}
	texture.flags = 0x1000;
	CHECK(cuTexObjectCreate(&object, &desc, &texture, NULL) == CUDA_ERROR_INVALID_VALUE);
	texture = (CUDA_TEXTURE_DESC){.filterMode = 2};
	CHECK(cuTexObjectCreate(&object, &desc, &texture, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuSurfObjectCreate(&surface, &desc) == CUDA_ERROR_INVALID_VALUE); /* the array allows no load and store */
	OK(cuArrayDestroy(array));
	shape.Flags = LOAD_STORE;
	OK(cuArray3DCreate_v2(&array, &shape));
	desc.res.array.hArray = array;
	OK(cuSurfObjectCreate(&surface, &desc));
	OK(cuSurfObjectGetResourceDesc(&got, surface));
	CHECK(got.res.array.hArray == array);
	OK(cuSurfObjectDestroy(surface));
	OK(cuArrayDestroy(array));
}

int main(void)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	CUdeviceptr memory;
	uint64_t before;

	begin();
	OK(cuMemAlloc_v2(&memory, MIB));
	before = physical(getpid(), 0);
	pitches(memory);
	linear(memory);
	arrays();
	CHECK(physical(getpid(), 0) == before);
	OK(cuMemFree_v2(memory));
	return 0;
}

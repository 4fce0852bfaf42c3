// SPDX-License-Identifier: Apache-2.0

// The ways in this file take CUDA arrays of bytes: one- and two-dimensional, three-dimensional, and
// mipmapped with one level.

#include "ways.h"

enum {
	wl_array_side = 32768, // no GPU's limit on a 2D array is lower
	wl_cube_side = 2048,   // no GPU's limit on a 3D array is lower
	wl_one_channel = 1,
};

static size_t wl_at_most(size_t value, size_t limit)
{
	return value < limit ? value : limit;
}

// wl_array_take takes an array whose shape never contains more than the requested bytes. Later,
// smaller pieces take the difference.
static int wl_array_take(struct wl_filler *filler, size_t bytes,
			 struct wl_grant *grant)
{
	size_t width = wl_at_most(bytes, wl_array_side);
	CUarrayDescriptor shape = {
		.width = width,
		.height = wl_at_most(bytes / width, wl_array_side),
		.format = CU_AD_FORMAT_UNSIGNED_INT8,
		.channels = wl_one_channel,
	};
	CUarray array;

	if (WL_TRY(filler, array_create, "cuArrayCreate_v2", &array, &shape))
		return -1;
	*grant = (struct wl_grant){.handle = (uintptr_t)array,
				   .bytes = shape.width * shape.height};
	return 0;
}

static CUarray3DDescriptor wl_cube(size_t bytes)
{
	size_t width = wl_at_most(bytes, wl_cube_side);
	size_t height = wl_at_most(bytes / width, wl_cube_side);

	return (CUarray3DDescriptor){
		.width = width,
		.height = height,
		.depth = wl_at_most(bytes / width / height, wl_cube_side),
		.format = CU_AD_FORMAT_UNSIGNED_INT8,
		.channels = wl_one_channel,
	};
}

static int wl_array3d_take(struct wl_filler *filler, size_t bytes,
			   struct wl_grant *grant)
{
	CUarray3DDescriptor shape = wl_cube(bytes);
	CUarray array;

	if (WL_TRY(filler, array3d_create, "cuArray3DCreate_v2", &array,
		   &shape))
		return -1;
	*grant = (struct wl_grant){
		.handle = (uintptr_t)array,
		.bytes = shape.width * shape.height * shape.depth,
	};
	return 0;
}

static int wl_array_give(struct wl_filler *filler, const struct wl_grant *grant)
{
	return WL_TRY(filler, array_destroy, "cuArrayDestroy",
		      (CUarray)(uintptr_t)grant->handle);
}

static int wl_mipmap_take(struct wl_filler *filler, size_t bytes,
			  struct wl_grant *grant)
{
	CUarray3DDescriptor shape = wl_cube(bytes);
	CUmipmappedArray array;

	if (WL_TRY(filler, mipmap_create, "cuMipmappedArrayCreate", &array,
		   &shape, 1))
		return -1;
	*grant = (struct wl_grant){
		.handle = (uintptr_t)array,
		.bytes = shape.width * shape.height * shape.depth,
	};
	return 0;
}

static int wl_mipmap_give(struct wl_filler *filler,
			  const struct wl_grant *grant)
{
	return WL_TRY(filler, mipmap_destroy, "cuMipmappedArrayDestroy",
		      (CUmipmappedArray)(uintptr_t)grant->handle);
}

const struct wl_way wl_array_ways[] = {
	{.name = "array", .help = "cuArrayCreate_v2",
	 .largest = (size_t)wl_array_side * wl_array_side,
	 .take = wl_array_take, .give = wl_array_give},
	{.name = "array3d", .help = "cuArray3DCreate_v2",
	 .take = wl_array3d_take, .give = wl_array_give},
	{.name = "mipmap", .help = "cuMipmappedArrayCreate, one level",
	 .take = wl_mipmap_take, .give = wl_mipmap_give},
	{.name = NULL},
};

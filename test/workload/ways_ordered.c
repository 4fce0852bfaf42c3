// SPDX-License-Identifier: Apache-2.0

// The ways in this file take stream-ordered memory: from the device's pool, by the per-thread
// default stream, and from a separate pool.

#include "ways.h"

// wl_granted waits for the stream, because stream-ordered calls return before the device has
// answered. A grant is certain only after the wait.
static int wl_granted(struct wl_filler *filler, CUdeviceptr pointer,
		      size_t bytes, struct wl_grant *grant)
{
	if (WL_TRY(filler, stream_synchronize, "cuStreamSynchronize",
		   filler->stream))
		return -1;
	*grant = (struct wl_grant){.handle = pointer, .bytes = bytes};
	return 0;
}

static int wl_async_take(struct wl_filler *filler, size_t bytes,
			 struct wl_grant *grant)
{
	CUdeviceptr pointer;

	if (WL_TRY(filler, mem_alloc_async, "cuMemAllocAsync", &pointer, bytes,
		   filler->stream))
		return -1;
	return wl_granted(filler, pointer, bytes, grant);
}

static int wl_async_ptsz_take(struct wl_filler *filler, size_t bytes,
			      struct wl_grant *grant)
{
	CUdeviceptr pointer;

	if (WL_TRY(filler, mem_alloc_async_ptsz, "cuMemAllocAsync_ptsz",
		   &pointer, bytes, NULL))
		return -1;
	if (WL_TRY(filler, stream_synchronize_ptsz, "cuStreamSynchronize_ptsz",
		   NULL))
		return -1;
	*grant = (struct wl_grant){.handle = pointer, .bytes = bytes};
	return 0;
}

static int wl_async_give(struct wl_filler *filler, const struct wl_grant *grant)
{
	return WL_TRY(filler, mem_free_async, "cuMemFreeAsync", grant->handle,
		      filler->stream);
}

// wl_pool_settle trims the pool after the last free, because a pool keeps freed memory.
static int wl_pool_settle(struct wl_filler *filler)
{
	if (WL_TRY(filler, stream_synchronize, "cuStreamSynchronize",
		   filler->stream))
		return -1;
	return WL_TRY(filler, pool_trim, "cuMemPoolTrimTo", filler->pool, 0);
}

static int wl_async_prepare(struct wl_filler *filler)
{
	return WL_TRY(filler, pool_default, "cuDeviceGetDefaultMemPool",
		      &filler->pool, filler->session->device);
}

static int wl_pool_prepare(struct wl_filler *filler)
{
	CUmemPoolProps properties = {
		.alloc_type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE,
			     filler->session->device},
	};

	return WL_TRY(filler, pool_create, "cuMemPoolCreate", &filler->pool,
		      &properties);
}

static int wl_pool_take(struct wl_filler *filler, size_t bytes,
			struct wl_grant *grant)
{
	CUdeviceptr pointer;

	if (WL_TRY(filler, pool_alloc, "cuMemAllocFromPoolAsync", &pointer,
		   bytes, filler->pool, filler->stream))
		return -1;
	return wl_granted(filler, pointer, bytes, grant);
}

const struct wl_way wl_ordered_ways[] = {
	{.name = "async", .help = "cuMemAllocAsync",
	 .prepare = wl_async_prepare, .take = wl_async_take,
	 .give = wl_async_give, .settle = wl_pool_settle},
	{.name = "async-ptsz", .help = "cuMemAllocAsync, per-thread stream",
	 .prepare = wl_async_prepare, .take = wl_async_ptsz_take,
	 .give = wl_async_give, .settle = wl_pool_settle},
	{.name = "pool", .help = "cuMemAllocFromPoolAsync, with a separate pool",
	 .prepare = wl_pool_prepare, .take = wl_pool_take,
	 .give = wl_async_give, .settle = wl_pool_settle},
	{.name = NULL},
};

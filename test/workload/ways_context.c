// SPDX-License-Identifier: Apache-2.0

// The ways in this file take memory by contexts. The driver chooses the size of a context's memory.

#include "ways.h"

static size_t wl_free_bytes(struct wl_filler *filler)
{
	size_t available = 0;
	size_t total = 0;

	WL_CALL(&filler->session->driver, mem_info, &available, &total);
	return available;
}

// wl_context_made restores the session's context, because a new context becomes the current
// context. wl_context_made takes the decrease of free memory as the new context's size.
static int wl_context_made(struct wl_filler *filler, uintptr_t made,
			   size_t free_before, struct wl_grant *grant)
{
	size_t free_after;

	if (WL_TRY(filler, ctx_set_current, "cuCtxSetCurrent",
		   filler->session->context))
		return -1;
	free_after = wl_free_bytes(filler);
	*grant = (struct wl_grant){
		.handle = made,
		.bytes = free_before > free_after ? free_before - free_after
						  : 0,
	};
	return 0;
}

static int wl_ctx_take(struct wl_filler *filler, size_t bytes,
		       struct wl_grant *grant)
{
	size_t before = wl_free_bytes(filler);
	CUcontext context;

	(void)bytes;
	if (WL_TRY(filler, ctx_create, "cuCtxCreate_v2", &context, 0,
		   filler->session->device))
		return -1;
	return wl_context_made(filler, (uintptr_t)context, before, grant);
}

static int wl_ctx_v3_take(struct wl_filler *filler, size_t bytes,
			  struct wl_grant *grant)
{
	size_t before = wl_free_bytes(filler);
	CUcontext context;

	(void)bytes;
	if (WL_TRY(filler, ctx_create_v3, "cuCtxCreate_v3", &context, NULL, 0,
		   0, filler->session->device))
		return -1;
	return wl_context_made(filler, (uintptr_t)context, before, grant);
}

static int wl_ctx_v4_take(struct wl_filler *filler, size_t bytes,
			  struct wl_grant *grant)
{
	size_t before = wl_free_bytes(filler);
	CUcontext context;

	(void)bytes;
	if (WL_TRY(filler, ctx_create_v4, "cuCtxCreate_v4", &context, NULL, 0,
		   filler->session->device))
		return -1;
	return wl_context_made(filler, (uintptr_t)context, before, grant);
}

static int wl_ctx_give(struct wl_filler *filler, const struct wl_grant *grant)
{
	return WL_TRY(filler, ctx_destroy, "cuCtxDestroy_v2",
		      (CUcontext)(uintptr_t)grant->handle);
}

static int wl_green_take(struct wl_filler *filler, size_t bytes,
			 struct wl_grant *grant)
{
	size_t before = wl_free_bytes(filler);
	CUdevResource resource = {{0}};
	CUdevResourceDesc desc;
	CUgreenCtx context;

	(void)bytes;
	if (WL_TRY(filler, device_resource, "cuDeviceGetDevResource",
		   filler->session->device, &resource, CU_DEV_RESOURCE_TYPE_SM))
		return -1;
	if (WL_TRY(filler, resource_desc, "cuDevResourceGenerateDesc", &desc,
		   &resource, 1))
		return -1;
	if (WL_TRY(filler, green_create, "cuGreenCtxCreate", &context, desc,
		   filler->session->device, CU_GREEN_CTX_DEFAULT_STREAM))
		return -1;
	return wl_context_made(filler, (uintptr_t)context, before, grant);
}

static int wl_green_give(struct wl_filler *filler, const struct wl_grant *grant)
{
	return WL_TRY(filler, green_destroy, "cuGreenCtxDestroy",
		      (CUgreenCtx)(uintptr_t)grant->handle);
}

const struct wl_way wl_context_ways[] = {
	{.name = "ctx", .help = "cuCtxCreate_v2, repeatedly",
	 .whole = true, .take = wl_ctx_take, .give = wl_ctx_give},
	{.name = "ctx-v3", .help = "cuCtxCreate_v3",
	 .whole = true, .take = wl_ctx_v3_take, .give = wl_ctx_give},
	{.name = "ctx-v4", .help = "cuCtxCreate_v4",
	 .whole = true, .take = wl_ctx_v4_take, .give = wl_ctx_give},
	{.name = "green", .help = "cuGreenCtxCreate",
	 .whole = true, .take = wl_green_take, .give = wl_green_give},
	{.name = NULL},
};

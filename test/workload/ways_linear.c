// SPDX-License-Identifier: Apache-2.0

// The ways in this file take linear memory, managed memory, memory of virtual memory management,
// and variables of modules.

#include "ways.h"

#include <stdio.h>

static int wl_alloc_take(struct wl_filler *filler, size_t bytes,
			 struct wl_grant *grant)
{
	CUdeviceptr pointer;

	if (WL_TRY(filler, mem_alloc, "cuMemAlloc_v2", &pointer, bytes))
		return -1;
	*grant = (struct wl_grant){.handle = pointer, .bytes = bytes};
	return 0;
}

static int wl_alloc_give(struct wl_filler *filler, const struct wl_grant *grant)
{
	return WL_TRY(filler, mem_free, "cuMemFree_v2", grant->handle);
}

static int wl_alloc_v1_take(struct wl_filler *filler, size_t bytes,
			    struct wl_grant *grant)
{
	unsigned pointer;

	if (WL_TRY(filler, mem_alloc_v1, "cuMemAlloc", &pointer,
		   (unsigned)bytes))
		return -1;
	*grant = (struct wl_grant){.handle = pointer, .bytes = bytes};
	return 0;
}

static int wl_alloc_v1_give(struct wl_filler *filler,
			    const struct wl_grant *grant)
{
	return WL_TRY(filler, mem_free_v1, "cuMemFree",
		      (unsigned)grant->handle);
}

// A pitched piece has as many rows of `wl_pitch_width` bytes as fit. The driver's rounding of rows
// to 512 bytes or less then adds nothing. A piece that is smaller than a row is a single row.
enum { wl_pitch_width = 4096 };

static int wl_pitch_take(struct wl_filler *filler, size_t bytes,
			 struct wl_grant *grant)
{
	size_t width = bytes < wl_pitch_width ? bytes : wl_pitch_width;
	size_t height = bytes / width;
	CUdeviceptr pointer;
	size_t pitch;

	if (WL_TRY(filler, mem_alloc_pitch, "cuMemAllocPitch_v2", &pointer,
		   &pitch, width, height, 4))
		return -1;
	*grant = (struct wl_grant){.handle = pointer, .bytes = pitch * height};
	return 0;
}

static int wl_managed_take(struct wl_filler *filler, size_t bytes,
			   struct wl_grant *grant)
{
	CUdeviceptr pointer;

	if (WL_TRY(filler, mem_alloc_managed, "cuMemAllocManaged", &pointer,
		   bytes, CU_MEM_ATTACH_GLOBAL))
		return -1;
	*grant = (struct wl_grant){.handle = pointer, .bytes = bytes};
	return 0;
}

static CUmemAllocationProp wl_vmm_properties(const struct wl_filler *filler)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE,
			     filler->session->device},
	};
}

static int wl_vmm_prepare(struct wl_filler *filler)
{
	CUmemAllocationProp properties = wl_vmm_properties(filler);

	return WL_TRY(filler, vmm_granularity, "cuMemGetAllocationGranularity",
		      &filler->granularity, &properties, 0);
}

// wl_vmm_place maps the memory and makes the memory accessible. On failure only the handle remains.
static int wl_vmm_place(struct wl_filler *filler, struct wl_grant *grant)
{
	CUmemAccessDesc access = {
		.location = {CU_MEM_LOCATION_TYPE_DEVICE,
			     filler->session->device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUdeviceptr at;

	if (WL_TRY(filler, vmm_reserve, "cuMemAddressReserve", &at,
		   grant->bytes, 0, 0, 0))
		return -1;
	if (WL_TRY(filler, vmm_map, "cuMemMap", at, grant->bytes, 0,
		   grant->handle, 0))
		goto unreserve;
	if (WL_TRY(filler, vmm_access, "cuMemSetAccess", at, grant->bytes,
		   &access, 1))
		goto unmap;
	grant->extra = at;
	return 0;
unmap:
	WL_CALL(&filler->session->driver, vmm_unmap, at, grant->bytes);
unreserve:
	WL_CALL(&filler->session->driver, vmm_unreserve, at, grant->bytes);
	return -1;
}

static int wl_vmm_take(struct wl_filler *filler, size_t bytes,
		       struct wl_grant *grant)
{
	CUmemAllocationProp properties = wl_vmm_properties(filler);
	CUmemGenericAllocationHandle handle;

	if (WL_TRY(filler, vmm_create, "cuMemCreate", &handle, bytes,
		   &properties, 0))
		return -1;
	*grant = (struct wl_grant){.handle = handle, .bytes = bytes};
	if (wl_vmm_place(filler, grant)) {
		WL_CALL(&filler->session->driver, vmm_release, handle);
		return -1;
	}
	return 0;
}

static int wl_vmm_give(struct wl_filler *filler, const struct wl_grant *grant)
{
	if (WL_TRY(filler, vmm_release, "cuMemRelease", grant->handle) ||
	    WL_TRY(filler, vmm_unmap, "cuMemUnmap", grant->extra,
		   grant->bytes))
		return -1;
	return WL_TRY(filler, vmm_unreserve, "cuMemAddressFree", grant->extra,
		      grant->bytes);
}

// wl_module_take takes memory by a module with a variable of the wanted size.
static int wl_module_take(struct wl_filler *filler, size_t bytes,
			  struct wl_grant *grant)
{
	char ptx[256];
	CUmodule module;

	snprintf(ptx, sizeof ptx,
		 ".version 7.0\n.target sm_50\n.address_size 64\n"
		 ".visible .global .align 16 .b8 filler[%zu];\n"
		 ".visible .entry nothing()\n{\n\tret;\n}\n",
		 bytes);
	if (WL_TRY(filler, module_load, "cuModuleLoadData", &module, ptx))
		return -1;
	*grant = (struct wl_grant){.handle = (uintptr_t)module, .bytes = bytes};
	return 0;
}

static int wl_module_give(struct wl_filler *filler,
			  const struct wl_grant *grant)
{
	return WL_TRY(filler, module_unload, "cuModuleUnload",
		      (CUmodule)(uintptr_t)grant->handle);
}

const struct wl_way wl_linear_ways[] = {
	{.name = "alloc", .help = "cuMemAlloc_v2",
	 .take = wl_alloc_take, .give = wl_alloc_give},
	{.name = "alloc-v1", .help = "cuMemAlloc with 32-bit sizes, of CUDA 2",
	 .largest = UINT32_MAX, .take = wl_alloc_v1_take,
	 .give = wl_alloc_v1_give},
	{.name = "pitch", .help = "cuMemAllocPitch_v2",
	 .take = wl_pitch_take, .give = wl_alloc_give},
	{.name = "managed", .help = "cuMemAllocManaged", .elastic = true,
	 .take = wl_managed_take, .give = wl_alloc_give},
	{.name = "vmm", .help = "cuMemCreate, mapped and made accessible",
	 .prepare = wl_vmm_prepare, .take = wl_vmm_take, .give = wl_vmm_give},
	{.name = "module", .help = "cuModuleLoadData with a global variable",
	 .largest = (size_t)1 << 30, .take = wl_module_take,
	 .give = wl_module_give},
	{.name = NULL},
};

// SPDX-License-Identifier: Apache-2.0

// This file handles modules and libraries, whose code and variables are in device memory. The
// charge is an upper estimate from the image. The functions of this file hold no mutex during the
// driver's calls, which may wait for the GPU or compile for minutes.

#include "base/number.h"
#include "driver/handle.h"
#include "memory/claim.h"
#include "memory/image.h"
#include "memory/release.h"
#include "memory/use.h"

// vg_code_device sets `device` to the device that is charged for code. A module is loaded into the
// current context. A library is loaded into every context that uses the library. The library is
// charged to the GPU of the current context, or to the first GPU if no context is current.
static CUresult vg_code_device(CUdevice *device)
{
	CUresult result = VG_CALL(cuCtxGetDevice, device);

	if (result != CUDA_ERROR_INVALID_CONTEXT)
		return result;
	return VG_CALL(cuDeviceGet, device, 0);
}

static CUresult vg_code_claim(struct vg_claim *claim, uint64_t estimate)
{
	CUdevice device;
	CUresult result;

	if (!vg_state_ready())
		return CUDA_ERROR_NOT_INITIALIZED;
	result = vg_code_device(&device);
	if (result)
		return result;
	return vg_claim_on(claim, device, VG_WAY_MODULE, vg_round_up(estimate, 512));
}

static CUresult vg_code_settle(struct vg_claim *claim, CUresult result, enum vg_kind kind,
			       const void *handle)
{
	if (result)
		vg_claim_void(claim);
	else
		vg_claim_settle(claim, kind, vg_handle_key(handle),
				kind == VG_MODULE ? vg_handle_context() : 0);
	return result;
}

// VG_LOAD is the body of a function that loads code.
#define VG_LOAD(kind, handle, estimate, call)                                                \
	do {                                                                                 \
		struct vg_claim loading_;                                                    \
		CUresult result_ = vg_code_claim(&loading_, estimate);                       \
                                                                                             \
		if (result_)                                                                 \
			return result_;                                                      \
		result_ = call;                                                              \
		return vg_code_settle(&loading_, result_, kind, result_ ? NULL : *(handle)); \
	} while (0)

VG_API(cuModuleLoad, CUmodule *module, const char *path)
{
	VG_LOAD(VG_MODULE, module, path ? vg_image_file_bytes(path) : 0,
		VG_CALL(cuModuleLoad, module, path));
}

VG_API(cuModuleLoadData, CUmodule *module, const void *image)
{
	VG_LOAD(VG_MODULE, module, vg_image_bytes(image, vg_image_unknown_size),
		VG_CALL(cuModuleLoadData, module, image));
}

VG_API(cuModuleLoadDataEx, CUmodule *module, const void *image, unsigned count, int *options,
       void **values)
{
	VG_LOAD(VG_MODULE, module, vg_image_bytes(image, vg_image_unknown_size),
		VG_CALL(cuModuleLoadDataEx, module, image, count, options, values));
}

VG_API(cuModuleLoadFatBinary, CUmodule *module, const void *image)
{
	VG_LOAD(VG_MODULE, module, vg_image_bytes(image, vg_image_unknown_size),
		VG_CALL(cuModuleLoadFatBinary, module, image));
}

VG_API(cuLibraryLoadData, CUlibrary *library, const void *image, int *jit, void **jit_values,
       unsigned jit_count, int *options, void **values, unsigned count)
{
	VG_LOAD(VG_CODE, library, vg_image_bytes(image, vg_image_unknown_size),
		VG_CALL(cuLibraryLoadData, library, image, jit, jit_values, jit_count, options, values,
			count));
}

VG_API(cuLibraryLoadFromFile, CUlibrary *library, const char *path, int *jit, void **jit_values,
       unsigned jit_count, int *options, void **values, unsigned count)
{
	VG_LOAD(VG_CODE, library, path ? vg_image_file_bytes(path) : 0,
		VG_CALL(cuLibraryLoadFromFile, library, path, jit, jit_values, jit_count, options,
			values, count));
}

VG_API(cuModuleUnload, CUmodule module)
{
	if (vg_state_ready())
		vg_uses_unload(vg_state_ready(), module);
	VG_FREE(VG_MODULE, vg_handle_key(module), VG_CALL(cuModuleUnload, module));
}

VG_API(cuLibraryUnload, CUlibrary library)
{
	if (vg_state_ready())
		vg_uses_unload(vg_state_ready(), library);
	VG_FREE(VG_CODE, vg_handle_key(library), VG_CALL(cuLibraryUnload, library));
}

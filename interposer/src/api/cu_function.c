// SPDX-License-Identifier: Apache-2.0

// This file handles functions, kernels and names in modules. A program that looks up or queries a
// function may cause the driver to load code: see use.h.

#include "driver/handle.h"
#include "memory/use.h"

// vg_named begins the first use of a name in a module or library.
static CUresult vg_named(struct vg_use *use, enum vg_kind kind, const void *owner, const char *name)
{
	struct vg_state *state = vg_lazy_state();

	use->state = NULL;
	if (!state)
		return CUDA_SUCCESS;
	vg_use_open(use, state);
	vg_use_add_name(use, (struct vg_owner){kind, vg_handle_key(owner)}, name);
	return vg_use_claim(use);
}

VG_API(cuModuleGetFunction, CUfunction *function, CUmodule module, const char *name)
{
	struct vg_state *state = vg_lazy_state();
	struct vg_use use;
	CUresult result = vg_named(&use, VG_MODULE, module, name);

	if (!result)
		result = vg_use_end(&use, VG_CALL(cuModuleGetFunction, function, module, name));
	if (!result && state)
		vg_use_known(state, *function, (struct vg_owner){VG_MODULE, vg_handle_key(module)});
	return result;
}

#define VG_DEFINE_GLOBAL(name, kind, address, bytes)                                               \
	VG_API(name, address *at, bytes *size, void *owner, const char *symbol)                    \
	{                                                                                          \
		struct vg_use use;                                                                 \
		CUresult result = vg_named(&use, kind, owner, symbol);                             \
                                                                                                   \
		return result ? result : vg_use_end(&use, VG_CALL(name, at, size, owner, symbol)); \
	}

VG_DEFINE_GLOBAL(cuModuleGetGlobal, VG_MODULE, CUdeviceptr_v1, unsigned)
VG_DEFINE_GLOBAL(cuModuleGetGlobal_v2, VG_MODULE, CUdeviceptr, size_t)
VG_DEFINE_GLOBAL(cuLibraryGetGlobal, VG_CODE, CUdeviceptr, size_t)
VG_DEFINE_GLOBAL(cuLibraryGetManaged, VG_CODE, CUdeviceptr, size_t)

// ---- libraries, which load no code before a kernel is used

VG_API(cuLibraryGetKernel, CUkernel *kernel, CUlibrary library, const char *name)
{
	struct vg_state *state = vg_lazy_state();
	CUresult result = VG_CALL(cuLibraryGetKernel, kernel, library, name);

	if (!result && state)
		vg_use_belongs(state, *kernel, (struct vg_owner){VG_CODE, vg_handle_key(library)});
	return result;
}

VG_API(cuLibraryGetModule, CUmodule *module, CUlibrary library)
{
	struct vg_state *state = vg_lazy_state();
	CUresult result = VG_CALL(cuLibraryGetModule, module, library);

	if (!result && state)
		vg_use_belongs(state, *module, (struct vg_owner){VG_CODE, vg_handle_key(library)});
	return result;
}

#define VG_DEFINE_ENUMERATE(name, counting, kind, part, whole)                                          \
	VG_API(name, part *parts, unsigned room, whole owner)                                           \
	{                                                                                               \
		struct vg_state *state = vg_lazy_state();                                               \
		CUresult result = VG_CALL(name, parts, room, owner);                                    \
		unsigned count = 0;                                                                     \
                                                                                                        \
		if (result || !state || VG_CALL(counting, &count, owner))                               \
			return result;                                                                  \
		for (unsigned i = 0; i < room && i < count; i++)                                        \
			vg_use_belongs(state, parts[i], (struct vg_owner){kind, vg_handle_key(owner)}); \
		return result;                                                                          \
	}

VG_DEFINE_ENUMERATE(cuLibraryEnumerateKernels, cuLibraryGetKernelCount, VG_CODE, CUkernel, CUlibrary)
VG_DEFINE_ENUMERATE(cuModuleEnumerateFunctions, cuModuleGetFunctionCount, VG_MODULE, CUfunction, CUmodule)

VG_API(cuKernelGetFunction, CUfunction *function, CUkernel kernel)
{
	struct vg_state *state = vg_lazy_state();
	CUresult result = VG_USE(kernel, VG_CALL(cuKernelGetFunction, function, kernel));
	struct vg_entry entry;

	if (!result && state && vg_table_get(&state->table, VG_PART, vg_handle_key(kernel), &entry))
		vg_use_known(state, *function, (struct vg_owner){VG_CODE, entry.extra});
	return result;
}

// ---- queries about one function

#define VG_DEFINE_USE(name, parameters, handle, ...)               \
	VG_API(name, VG_PARAMETERS parameters)                     \
	{                                                          \
		return VG_USE(handle, VG_CALL(name, __VA_ARGS__)); \
	}
#define VG_PARAMETERS(...) __VA_ARGS__

VG_DEFINE_USE(cuFuncLoad, (CUfunction function), function, function)
VG_DEFINE_USE(cuFuncGetAttribute, (int *value, int attribute, CUfunction function), function, value,
	      attribute, function)
VG_DEFINE_USE(cuFuncSetAttribute, (CUfunction function, int attribute, int value), function, function,
	      attribute, value)
VG_DEFINE_USE(cuKernelGetAttribute, (int *value, int attribute, CUkernel kernel, CUdevice device), kernel,
	      value, attribute, kernel, device)
VG_DEFINE_USE(cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device), kernel,
	      attribute, value, kernel, device)
VG_DEFINE_USE(cuOccupancyMaxActiveBlocksPerMultiprocessor,
	      (int *blocks, CUfunction function, int threads, size_t shared), function, blocks, function,
	      threads, shared)
VG_DEFINE_USE(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
	      (int *blocks, CUfunction function, int threads, size_t shared, unsigned flags), function,
	      blocks, function, threads, shared, flags)

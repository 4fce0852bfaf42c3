// SPDX-License-Identifier: Apache-2.0
/* This file implements queries about kernels: attributes, parameters, occupancy. */
#include "module.h"

#define THREADS_PER_BLOCK_MAX 1024
#define BLOCKS_PER_SM 32
#define SHARED_PER_SM 233472
#define SHARED_DEFAULT_MAX 49152
#define REGISTERS 16

static CUresult get_attribute(int *value, int attribute, CUfunction handle)
{
	struct sim_function *function;
	CUresult err = sim_function_of(handle, &function);

	if (err)
		return err;
	if (!value || attribute < 0 || attribute > 15)
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case 0:
		*value = THREADS_PER_BLOCK_MAX;
		break;
	case 4:
		*value = REGISTERS;
		break;
	case 5: /* of the PTX and of the binary */
	case 6:
		*value = 90;
		break;
	case 8:
		*value = function->max_dynamic_shared ? (int)function->max_dynamic_shared :
							SHARED_DEFAULT_MAX;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction handle, int attribute, int value)
{
	struct sim_function *function;
	CUresult err = sim_function_of(handle, &function);

	if (err)
		return err;
	if (attribute == 8 && value >= 0 && value <= SHARED_PER_SM)
		function->max_dynamic_shared = (unsigned)value;
	else if (attribute < 8 || attribute > 15 || value < 0)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* load loads the function, because a query counts as a use. */
static CUresult load(CUfunction handle)
{
	struct sim_function *function;
	CUresult err = sim_function_of(handle, &function);

	return err ? err : sim_module_use(function->module);
}

CU_API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
	CUresult err = get_attribute(value, attribute, function);

	return err ? err : load(function);
}

CU_API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
	return set_attribute(function, attribute, value);
}

CU_API CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device)
{
	(void)device;
	return get_attribute(value, attribute, kernel);
}

CU_API CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
	(void)device;
	return set_attribute(kernel, attribute, value);
}

static CUresult accept(CUfunction handle)
{
	struct sim_function *function;

	return sim_function_of(handle, &function);
}

CU_API CUresult cuFuncSetCacheConfig(CUfunction function, int config)
{
	(void)config;
	return accept(function);
}

CU_API CUresult cuFuncSetSharedMemConfig(CUfunction function, int config)
{
	(void)config;
	return accept(function);
}

CU_API CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device)
{
	(void)config, (void)device;
	return accept(kernel);
}

CU_API CUresult cuFuncLoad(CUfunction function)
{
	return load(function);
}

CU_API CUresult cuFuncIsLoaded(int *state, CUfunction handle)
{
	struct sim_function *function;
	CUresult err = state ? sim_function_of(handle, &function) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		*state = __atomic_load_n(&function->module->unloaded, __ATOMIC_ACQUIRE) == 0;
	return err;
}

/* ---- names and parameters ---- */

static CUresult name_of(const char **name, CUfunction handle)
{
	struct sim_function *function;
	CUresult err = name ? sim_function_of(handle, &function) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		*name = function->entry->name;
	return err;
}

CU_API CUresult cuFuncGetName(const char **name, CUfunction function)
{
	return name_of(name, function);
}

CU_API CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
	return name_of(name, kernel);
}

static CUresult param_info(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
	struct sim_function *function;
	CUresult err = sim_function_of(handle, &function);

	if (err)
		return err;
	if (!offset || index >= function->entry->param_count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = function->entry->params[index].offset;
	if (size)
		*size = function->entry->params[index].size;
	return CUDA_SUCCESS;
}

CU_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
	return param_info(function, index, offset, size);
}

CU_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
	return param_info(kernel, index, offset, size);
}

CU_API CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
	struct sim_function *function;
	CUresult err = module ? sim_function_of(handle, &function) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		*module = function->module;
	return err;
}

CU_API CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
	return cuFuncGetModule(library, kernel);
}

/* cuKernelGetFunction returns the kernel's handle, because a kernel is a function in every context.
 */
CU_API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
	CUmodule module;
	CUresult err = function ? accept(kernel) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		err = cuLibraryGetModule(&module, kernel->module);
	if (!err)
		err = load(kernel);
	if (!err)
		*function = kernel;
	return err;
}

/* ---- the functions of modules ---- */

static CUresult count_of(unsigned *count, CUmodule handle)
{
	struct sim_module *module;
	CUresult err = count ? sim_module_of(handle, &module) : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		*count = (unsigned)module->ptx.entry_count;
	return err;
}

static CUresult enumerate(CUfunction *out, unsigned room, CUmodule handle)
{
	struct sim_module *module;
	CUresult err = out ? sim_module_of(handle, &module) : CUDA_ERROR_INVALID_VALUE;

	for (unsigned i = 0; !err && i < room && i < module->ptx.entry_count; i++)
		out[i] = &module->functions[i];
	return err;
}

CU_API CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module)
{
	return count_of(count, module);
}

CU_API CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library)
{
	return count_of(count, library);
}

CU_API CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned room, CUmodule module)
{
	return enumerate(out, room, module);
}

CU_API CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned room, CUlibrary library)
{
	return enumerate(out, room, library);
}

CU_API CUresult cuModuleGetLoadingMode(int *mode)
{
	CUresult err = mode ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (!err)
		*mode = sim.handle.state->driver.lazy_loading ? 2 : 1;
	return err;
}

/* ---- occupancy ---- */

static int blocks_per_sm(int threads, size_t shared)
{
	int by_threads = threads > 0 ? THREADS_PER_SM / (int)round_up((uint64_t)threads, 32) : 0;
	int by_shared = shared ? (int)(SHARED_PER_SM / shared) : BLOCKS_PER_SM;
	int least = by_threads < by_shared ? by_threads : by_shared;

	return least < BLOCKS_PER_SM ? least : BLOCKS_PER_SM;
}

static CUresult active_blocks(int *blocks, CUfunction function, int threads, size_t shared)
{
	CUresult err = accept(function);

	if (err)
		return err;
	if (!blocks || threads < 1)
		return CUDA_ERROR_INVALID_VALUE;
	*blocks = threads > THREADS_PER_BLOCK_MAX ? 0 : blocks_per_sm(threads, shared);
	return CUDA_SUCCESS;
}

CU_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
							    int threads, size_t shared)
{
	return active_blocks(blocks, function, threads, shared);
}

CU_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
								     int threads, size_t shared,
								     unsigned flags)
{
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : active_blocks(blocks, function, threads, shared);
}

typedef size_t (*shared_for_block)(int threads);

static CUresult best_block(int *grid, int *block, CUfunction function, shared_for_block shared_of,
			   size_t shared, int limit)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (!err)
		err = accept(function);
	if (err)
		return err;
	if (!grid || !block)
		return CUDA_ERROR_INVALID_VALUE;
	*block = limit > 0 && limit < THREADS_PER_BLOCK_MAX ? limit : THREADS_PER_BLOCK_MAX;
	if (shared_of)
		shared = shared_of(*block);
	*grid = blocks_per_sm(*block, shared) * (int)sim_mps_sms(sim_gpu(context->device));
	return CUDA_SUCCESS;
}

CU_API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
						 shared_for_block shared_of, size_t shared, int limit)
{
	return best_block(grid, block, function, shared_of, shared, limit);
}

CU_API CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
							  shared_for_block shared_of, size_t shared,
							  int limit, unsigned flags)
{
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE :
			   best_block(grid, block, function, shared_of, shared, limit);
}

CU_API CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks,
							int threads)
{
	CUresult err = accept(function);

	if (err)
		return err;
	if (!bytes || blocks < 1 || threads < 1)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = SHARED_PER_SM / (size_t)blocks;
	return CUDA_SUCCESS;
}

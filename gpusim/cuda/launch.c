// SPDX-License-Identifier: Apache-2.0
/* This file implements kernel launches, through every entry point. */
#include "module.h"

#include <string.h>

#define BLOCKS_PER_SM 32u
#define THREADS_PER_BLOCK_MAX 1024u

/* ---- the work of a launch on the timeline ---- */

/*
 * param returns the value of one of the first parameters, which all have 64 bits, from the pointers
 * or from the packed buffer.
 */
static CUresult param(void **params, void **extra, size_t index, uint64_t *value)
{
	const void *buffer = NULL;
	size_t size = 0;

	if (params && params[index]) {
		memcpy(value, params[index], sizeof(*value));
		return CUDA_SUCCESS;
	}
	for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[1];
		else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
			memcpy(&size, extra[1], sizeof(size));
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (!buffer || size < (index + 1) * sizeof(*value))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(value, (const char *)buffer + index * sizeof(*value), sizeof(*value));
	return CUDA_SUCCESS;
}

static uint64_t volume(const unsigned extent[3])
{
	return (uint64_t)extent[0] * extent[1] * extent[2];
}

/*
 * demand returns the part of the GPU's thread and block slots that the grid occupies.
 */
static uint32_t demand(const struct gs_gpu *gpu, const unsigned grid[3], const unsigned block[3])
{
	uint64_t blocks = volume(grid);
	uint64_t limit = (uint64_t)gpu->sm_count * THREADS_PER_SM * BLOCKS_PER_SM;
	uint64_t threads, by_threads, by_blocks;

	if (blocks > limit)
		return GS_DEMAND_ALL;
	threads = blocks * round_up(volume(block), 32);
	by_threads = threads * GS_DEMAND_ALL / ((uint64_t)gpu->sm_count * THREADS_PER_SM);
	by_blocks = blocks * GS_DEMAND_ALL / ((uint64_t)gpu->sm_count * BLOCKS_PER_SM);
	if (by_threads < by_blocks)
		by_threads = by_blocks;
	return by_threads > GS_DEMAND_ALL ? GS_DEMAND_ALL : (uint32_t)by_threads;
}

CUresult sim_measure(const struct sim_device *device, const struct sim_function *function,
		     const unsigned grid[3], const unsigned block[3], void **params, void **extra,
		     struct sim_launch *launch)
{
	const struct gs_gpu *gpu = sim_gpu(device);
	CUresult err;

	if (volume(grid) == 0 || volume(block) == 0 || volume(block) > THREADS_PER_BLOCK_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (params && extra)
		return CUDA_ERROR_INVALID_VALUE;
	if (function->entry->param_count && !params && !extra)
		return CUDA_ERROR_INVALID_VALUE;
	launch->demand_ppm = demand(gpu, grid, block);
	launch->duration_ns = gpu->default_kernel_ns;
	launch->mine = launch->theirs = launch->turn = 0;
	launch->traps = function->entry->traps;
	if (!function->entry->spins)
		return CUDA_SUCCESS;
	err = param(params, extra, 0, &launch->duration_ns);
	if (!function->entry->meets)
		return err;
	err = err ? err : param(params, extra, 1, &launch->mine);
	err = err ? err : param(params, extra, 2, &launch->theirs);
	return err ? err : param(params, extra, 3, &launch->turn);
}

/* ---- cuLaunchKernel and similar calls ---- */

static CUresult run(struct sim_stream *stream, const CUDA_KERNEL_NODE_PARAMS *p)
{
	const unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ};
	const unsigned block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
	struct sim_function *function;
	struct sim_launch launch;
	struct gs_work work = {.kind = GS_ITEM_COMPUTE};
	CUresult err = sim_function_of(p->func, &function);

	if (!err)
		err = sim_module_use(function->module);
	if (!err)
		err = sim_measure(stream->context->device, function, grid, block, p->kernelParams,
				  p->extra, &launch);
	if (err)
		return err;
	if (sim_capturing(stream))
		return sim_capture_kernel(stream, p);
	err = sim_capture_enqueue_guard(stream);
	if (!err)
		err = sim_limits_take(stream->context);
	if (err)
		return err;
	work.duration_ns = launch.duration_ns;
	work.demand_ppm = launch.demand_ppm;
	work.meet_mine = launch.mine;
	work.meet_theirs = launch.theirs;
	work.meet_turn = launch.turn;
	work.traps = launch.traps;
	err = sim_submit(stream, &work, NULL);
	if (err || !stream->context->blocking)
		return err;
	sim_wait_stream(stream);
	return sim_broken(stream->context->device);
}

static CUresult launch_in(CUstream handle, bool ptds, const CUDA_KERNEL_NODE_PARAMS *params)
{
	struct sim_stream *stream;
	CUresult err = sim_stream_of(handle, ptds, &stream);

	return err ? err : run(stream, params);
}

static CUDA_KERNEL_NODE_PARAMS describe(CUfunction function, unsigned gx, unsigned gy, unsigned gz,
					unsigned bx, unsigned by, unsigned bz, unsigned shared,
					void **params, void **extra)
{
	return (CUDA_KERNEL_NODE_PARAMS){
		.func = function,
		.gridDimX = gx, .gridDimY = gy, .gridDimZ = gz,
		.blockDimX = bx, .blockDimY = by, .blockDimZ = bz,
		.sharedMemBytes = shared,
		.kernelParams = params,
		.extra = extra,
	};
}

static CUresult launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
		       unsigned by, unsigned bz, unsigned shared, CUstream stream, bool ptds,
		       void **params, void **extra)
{
	CUDA_KERNEL_NODE_PARAMS p = describe(function, gx, gy, gz, bx, by, bz, shared, params, extra);

	return launch_in(stream, ptds, &p);
}

CU_PTSZ(cuLaunchKernel, (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			 unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params,
			 void **extra),
	launch(function, gx, gy, gz, bx, by, bz, shared, stream, ptds, params, extra))

CU_PTSZ(cuLaunchCooperativeKernel, (CUfunction function, unsigned gx, unsigned gy, unsigned gz,
				    unsigned bx, unsigned by, unsigned bz, unsigned shared,
				    CUstream stream, void **params),
	launch(function, gx, gy, gz, bx, by, bz, shared, stream, ptds, params, NULL))

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction function, void **params, void **extra,
			  bool ptds)
{
	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	return launch(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
		      c->blockDimZ, c->sharedMemBytes, c->hStream, ptds, params, extra);
}

CU_PTSZ(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **params,
			   void **extra),
	launch_ex(config, function, params, extra, ptds))

CU_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count,
						     unsigned flags)
{
	if (!list || count == 0 || flags & ~3u)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count; i++) {
		const CUDA_LAUNCH_PARAMS *p = &list[i];
		CUresult err = launch(p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX,
				      p->blockDimY, p->blockDimZ, p->sharedMemBytes, p->hStream, false,
				      p->kernelParams, NULL);

		if (err)
			return err;
	}
	return CUDA_SUCCESS;
}

/*
 * ---- the first API, whose calls set parameters and block shape on the function ----
 */

static CUresult launch_grid(CUfunction handle, int width, int height, CUstream stream)
{
	struct sim_function *function;
	size_t size = sizeof(function->params);
	CUresult err = sim_ready();
	void *extra[5];

	if (!err)
		err = sim_function_of(handle, &function);
	if (err)
		return err;
	if (width < 1 || height < 1)
		return CUDA_ERROR_INVALID_VALUE;
	extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
	extra[1] = function->params;
	extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
	extra[3] = &size;
	extra[4] = CU_LAUNCH_PARAM_END;
	return launch(function, (unsigned)width, (unsigned)height, 1, function->block[0],
		      function->block[1], function->block[2], function->shared, stream, false, NULL,
		      extra);
}

CU_API CUresult cuLaunch(CUfunction function)
{
	return launch_grid(function, 1, 1, NULL);
}

CU_API CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
	return launch_grid(function, width, height, NULL);
}

CU_API CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
	return launch_grid(function, width, height, stream);
}

CU_API CUresult cuFuncSetBlockShape(CUfunction handle, int x, int y, int z)
{
	struct sim_function *function;
	CUresult err = sim_function_of(handle, &function);

	if (err)
		return err;
	if (x < 1 || y < 1 || z < 1)
		return CUDA_ERROR_INVALID_VALUE;
	function->block[0] = (unsigned)x;
	function->block[1] = (unsigned)y;
	function->block[2] = (unsigned)z;
	return CUDA_SUCCESS;
}

CU_API CUresult cuFuncSetSharedSize(CUfunction handle, unsigned bytes)
{
	struct sim_function *function;
	CUresult err = sim_function_of(handle, &function);

	if (!err)
		function->shared = bytes;
	return err;
}

CU_API CUresult cuParamSetSize(CUfunction handle, unsigned bytes)
{
	struct sim_function *function;
	CUresult err = sim_function_of(handle, &function);

	if (err)
		return err;
	return bytes <= sizeof(function->params) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuParamSetv(CUfunction handle, int offset, void *value, unsigned bytes)
{
	struct sim_function *function;
	CUresult err = sim_function_of(handle, &function);

	if (err)
		return err;
	if (!value || offset < 0 || (size_t)offset + bytes > sizeof(function->params))
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(function->params + offset, value, bytes);
	return CUDA_SUCCESS;
}

CU_API CUresult cuParamSeti(CUfunction function, int offset, unsigned value)
{
	return cuParamSetv(function, offset, &value, sizeof(value));
}

CU_API CUresult cuParamSetf(CUfunction function, int offset, float value)
{
	return cuParamSetv(function, offset, &value, sizeof(value));
}

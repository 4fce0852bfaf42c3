// SPDX-License-Identifier: Apache-2.0

// This file handles launches of kernels. Graphs are launched in cu_graph.c.

#include "driver/handle.h"
#include "memory/use.h"
#include "time/place.h"
#include "time/throttle.h"

// vg_kernel_prior is the assumed length of a kernel whose kind has not been measured, in ns.
static const uint64_t vg_kernel_prior = 50000;

static uint64_t vg_launch_key(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			      unsigned by, unsigned bz)
{
	uint64_t grid = (uint64_t)gx << 32 ^ (uint64_t)gy << 16 ^ gz;
	uint64_t block = (uint64_t)bx << 32 ^ (uint64_t)by << 16 ^ bz;

	return vg_work_key(vg_handle_key(function) ^ grid * 31, block + grid);
}

#define VG_LAUNCH(function, shape, stream, per_thread, call) \
	VG_WORK(vg_launch_key shape, vg_kernel_prior, stream, per_thread, VG_USE(function, call))

#define VG_DEFINE_LAUNCH(name, per_thread)                                                     \
	VG_API(name, CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,  \
	       unsigned by, unsigned bz, unsigned shared, CUstream stream, void **parameters,  \
	       void **extra)                                                                   \
	{                                                                                      \
		VG_LAUNCH(function, (function, gx, gy, gz, bx, by, bz), stream, per_thread,    \
			  VG_CALL(name, function, gx, gy, gz, bx, by, bz, shared, stream,      \
				  parameters, extra));                                         \
	}

#define VG_DEFINE_COOPERATIVE(name, per_thread)                                               \
	VG_API(name, CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, \
	       unsigned by, unsigned bz, unsigned shared, CUstream stream, void **parameters) \
	{                                                                                     \
		VG_LAUNCH(function, (function, gx, gy, gz, bx, by, bz), stream, per_thread,   \
			  VG_CALL(name, function, gx, gy, gz, bx, by, bz, shared, stream,     \
				  parameters));                                               \
	}

#define VG_DEFINE_LAUNCH_EX(name, per_thread)                                              \
	VG_API(name, const CUlaunchConfig *config, CUfunction function, void **parameters, \
	       void **extra)                                                               \
	{                                                                                  \
		if (!config)                                                               \
			return VG_CALL(name, config, function, parameters, extra);         \
		VG_LAUNCH(function,                                                        \
			  (function, config->gridDimX, config->gridDimY, config->gridDimZ, \
			   config->blockDimX, config->blockDimY, config->blockDimZ),       \
			  config->hStream, per_thread,                                     \
			  VG_CALL(name, config, function, parameters, extra));             \
	}

VG_DEFINE_LAUNCH(cuLaunchKernel, false)
VG_DEFINE_LAUNCH(cuLaunchKernel_ptsz, true)
VG_DEFINE_COOPERATIVE(cuLaunchCooperativeKernel, false)
VG_DEFINE_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)
VG_DEFINE_LAUNCH_EX(cuLaunchKernelEx, false)
VG_DEFINE_LAUNCH_EX(cuLaunchKernelEx_ptsz, true)

// ---- launches of CUDA 2, whose block shape an earlier call sets

VG_API(cuLaunch, CUfunction function)
{
	VG_WORK(vg_launch_key(function, 1, 1, 1, 0, 0, 0), vg_kernel_prior, NULL, false,
		VG_USE(function, VG_CALL(cuLaunch, function)));
}

VG_API(cuLaunchGrid, CUfunction function, int width, int height)
{
	VG_WORK(vg_launch_key(function, (unsigned)width, (unsigned)height, 1, 0, 0, 0),
		vg_kernel_prior, NULL, false,
		VG_USE(function, VG_CALL(cuLaunchGrid, function, width, height)));
}

VG_API(cuLaunchGridAsync, CUfunction function, int width, int height, CUstream stream)
{
	VG_WORK(vg_launch_key(function, (unsigned)width, (unsigned)height, 1, 0, 0, 0),
		vg_kernel_prior, stream, false,
		VG_USE(function, VG_CALL(cuLaunchGridAsync, function, width, height, stream)));
}

// ---- one kernel on several GPUs

// vg_most_launches is more than the number of GPUs of a machine. The driver allows one launch on each
// GPU.
enum { vg_most_launches = 64 };

static void vg_begin_together(struct vg_state *state, struct vg_ticket *tickets,
			      const CUDA_LAUNCH_PARAMS *list, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		const CUDA_LAUNCH_PARAMS *launch = &list[i];
		struct vg_work work = {
			.key = vg_launch_key(launch->function, launch->gridDimX, launch->gridDimY,
					     launch->gridDimZ, launch->blockDimX, launch->blockDimY,
					     launch->blockDimZ),
			.prior = vg_kernel_prior, .stream = launch->hStream,
		};

		vg_throttle_begin(state, &tickets[i], &work);
	}
}

VG_API(cuLaunchCooperativeKernelMultiDevice, CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
	struct vg_state *state = vg_throttle_state();
	struct vg_ticket tickets[vg_most_launches];
	CUresult result;

	if (state && count > vg_most_launches)
		return CUDA_ERROR_INVALID_VALUE;
	if (!state || !list)
		return VG_CALL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
	vg_begin_together(state, tickets, list, count);
	result = VG_CALL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
	for (unsigned i = 0; i < count; i++)
		vg_throttle_end(&tickets[i], result);
	return result;
}

// SPDX-License-Identifier: Apache-2.0
/* This file implements attributes of a context that a program reads and sets. */
#include "sim.h"

static CUdevice ordinal_of(const struct sim_context *context)
{
	return (CUdevice)(context->device - sim.devices);
}

static CUresult get_device(CUdevice *device, CUcontext handle)
{
	struct sim_context *context;
	CUresult err = sim_context_of(handle, &context);

	if (err)
		return err;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ordinal_of(context);
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetDevice(CUdevice *device)
{
	return get_device(device, NULL);
}

CU_API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
	return get_device(device, context);
}

CU_API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned *version)
{
	struct sim_context *context;
	CUresult err = sim_context_of(handle, &context);

	if (err)
		return err;
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = context->version;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
	struct sim_context *context;
	CUresult err = sim_context_of(handle, &context);

	if (err)
		return err;
	if (!id)
		return CUDA_ERROR_INVALID_VALUE;
	*id = context->id;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxGetFlags(unsigned *flags)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = context->flags;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxSetFlags(unsigned flags)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (!err)
		context->flags = flags;
	return err;
}

static bool known_limit(unsigned limit)
{
	return limit <= 6;
}

CU_API CUresult cuCtxGetLimit(size_t *value, unsigned limit)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (!known_limit(limit))
		return CUDA_ERROR_INVALID_VALUE;
	*value = context->limits[limit];
	return CUDA_SUCCESS;
}

/*
 * limit_bytes returns the device memory that a limit takes. The FIFO and the heap take their size,
 * and the stack takes its size for each thread that the GPU can hold. The driver takes the memory
 * at once, or with lazy_heap at the next launch of a kernel. The initial sizes of FIFO, heap and
 * stack are part of the context.
 */
static uint64_t limit_bytes(const struct sim_context *context, unsigned limit, uint64_t value)
{
	static const uint64_t first[] = {1024, 1 << 20, 8 << 20};
	uint64_t unit = limit ? 1 : (uint64_t)sim_gpu(context->device)->sm_count * THREADS_PER_SM;

	if (limit > 2 || value <= first[limit])
		return 0;
	value -= first[limit];
	if (value > UINT64_MAX / 4 / unit)
		return UINT64_MAX / 4;
	return round_up(value * unit, 2 << 20);
}

static CUresult take_limit(struct sim_context *context, unsigned limit, uint64_t value)
{
	uint64_t bytes = limit_bytes(context, limit, value);
	uint64_t *have;
	CUresult err = CUDA_SUCCESS;

	if (limit > 2)
		return CUDA_SUCCESS;
	have = &context->raised[limit];
	if (bytes > *have)
		err = sim_charge(context->device, bytes - *have);
	else
		sim_uncharge(context->device, *have - bytes);
	if (!err)
		*have = bytes;
	return err;
}

CUresult sim_limits_take(struct sim_context *context)
{
	CUresult err = CUDA_SUCCESS;

	if (!sim.handle.state->driver.lazy_heap)
		return CUDA_SUCCESS;
	sim_lock();
	for (unsigned i = 0; i < 3 && !err; i++)
		err = take_limit(context, i, context->limits[i]);
	sim_unlock();
	return err;
}

void sim_limits_end(struct sim_context *context)
{
	for (unsigned i = 0; i < 3; i++) {
		sim_uncharge(context->device, context->raised[i]);
		context->raised[i] = 0;
	}
}

CU_API CUresult cuCtxSetLimit(unsigned limit, size_t value)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	if (!known_limit(limit))
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	if (!sim.handle.state->driver.lazy_heap)
		err = take_limit(context, limit, value);
	if (!err)
		context->limits[limit] = value;
	sim_unlock();
	return err;
}

/* cuCtxGetCacheConfig and the calls below return or accept preferences without effect. */
CU_API CUresult cuCtxGetCacheConfig(int *config)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = 0;
	return sim_ready();
}

CU_API CUresult cuCtxSetCacheConfig(int config)
{
	(void)config;
	return sim_ready();
}

CU_API CUresult cuCtxGetSharedMemConfig(int *config)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = 1;
	return sim_ready();
}

CU_API CUresult cuCtxSetSharedMemConfig(int config)
{
	(void)config;
	return sim_ready();
}

CU_API CUresult cuCtxResetPersistingL2Cache(void)
{
	return sim_ready();
}

CU_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return CUDA_SUCCESS;
}

static CUresult synchronise(CUcontext handle)
{
	struct sim_context *context;
	CUresult err = sim_context_of(handle, &context);

	if (!err)
		err = sim_capture_context_guard(context);
	if (err)
		return err;
	sim_wait_context(context);
	return sim_broken(context->device);
}

CU_API CUresult cuCtxSynchronize(void)
{
	return synchronise(NULL);
}

CU_API CUresult cuCtxSynchronize_v2(CUcontext context)
{
	return synchronise(context);
}

/* ---- peers: every GPU can access every other GPU ---- */

CU_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice a, CUdevice b)
{
	struct sim_device *device;
	CUresult err = sim_device(a, &device);

	if (!err)
		err = sim_device(b, &device);
	if (err)
		return err;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = a != b;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice a, CUdevice b)
{
	CUresult err = cuDeviceCanAccessPeer(value, a, b);

	if (err)
		return err;
	if (a == b || attribute < 1 || attribute > 4)
		return CUDA_ERROR_INVALID_VALUE;
	*value = 1;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags)
{
	struct sim_context *mine, *peer;
	uint16_t bit;
	CUresult err = sim_current(&mine);

	if (!err)
		err = handle ? sim_context_of(handle, &peer) : CUDA_ERROR_INVALID_CONTEXT;
	if (err)
		return err;
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (peer->device == mine->device)
		return CUDA_ERROR_INVALID_DEVICE;
	bit = (uint16_t)(1u << ordinal_of(peer));
	if (mine->peers & bit)
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	mine->peers |= bit;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxDisablePeerAccess(CUcontext handle)
{
	struct sim_context *mine, *peer;
	uint16_t bit;
	CUresult err = sim_current(&mine);

	if (!err)
		err = handle ? sim_context_of(handle, &peer) : CUDA_ERROR_INVALID_CONTEXT;
	if (err)
		return err;
	bit = (uint16_t)(1u << ordinal_of(peer));
	if (!(mine->peers & bit))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	mine->peers &= (uint16_t)~bit;
	return CUDA_SUCCESS;
}

// SPDX-License-Identifier: Apache-2.0
/* This file creates and ends contexts. */
#include "sim.h"

#include <stdlib.h>

CUresult cuDeviceGraphMemTrim(CUdevice device);

#define CTX_FLAGS_MASK 0x1ffu

static void count_context(struct sim_context *context, bool made)
{
	struct gs_proc_gpu *mine;

	gs_lock(&sim.handle);
	mine = &sim.handle.state->procs[sim.handle.id].gpu[context->device->gpu];
	if (made) {
		mine->contexts++;
		mine->context_bytes += context->bytes;
	} else {
		mine->contexts--;
		mine->context_bytes -= context->bytes;
		if (mine->contexts == 0)
			mine->trapped = 0;
	}
	gs_unlock(&sim.handle);
}

static void set_default_limits(struct sim_context *context)
{
	context->limits[0] = 1024;      /* stack */
	context->limits[1] = 1 << 20;   /* printf FIFO */
	context->limits[2] = 8 << 20;   /* device heap */
	context->limits[3] = 2;         /* device runtime sync depth */
	context->limits[4] = 2048;      /* pending launches */
	context->limits[5] = 128;       /* L2 fetch granularity */
}

/* connections returns the number of hardware queues of a context. The environment overrides the
 * card's number. */
static uint32_t connections(const struct sim_context *context)
{
	const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	unsigned long own = text ? strtoul(text, NULL, 10) : 0;

	if (own >= 1 && own <= GS_MAX_CONNECTIONS)
		return (uint32_t)own;
	return sim_gpu(context->device)->connections;
}

/* blocking reports whether the environment makes each kernel launch wait for the kernel's end. */
static bool blocking(void)
{
	const char *text = getenv("CUDA_LAUNCH_BLOCKING");

	return text && strtoul(text, NULL, 10) != 0;
}

/* start starts a context: start allocates the context's memory and the default stream. */
static CUresult start(struct sim_context *context)
{
	CUresult err;

	err = sim_broken(context->device);
	if (!err)
		err = sim_mps_admit(context->device);
	if (err)
		return err;
	sim_pass(sim_gpu(context->device)->context_start_ns);
	context->bytes = sim_gpu(context->device)->context_bytes;
	err = sim_charge(context->device, context->bytes);
	if (err)
		return err;
	context->connection_count = connections(context);
	context->blocking = blocking();
	err = sim_stream_new(context, 0, 0, &context->legacy);
	if (err) {
		sim_uncharge(context->device, context->bytes);
		return err;
	}
	set_default_limits(context);
	count_context(context, true);
	__atomic_store_n(&context->alive, true, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

static struct sim_context *allocate(struct sim_device *device, unsigned flags)
{
	struct sim_context *context = calloc(1, sizeof(*context));

	if (!context)
		return NULL;
	context->device = device;
	context->flags = flags;
	context->version = 3020;
	pthread_mutex_init(&context->loading, NULL);
	sim_lock();
	context->id = sim.next_id++;
	context->next = sim.contexts;
	sim.contexts = context;
	sim_unlock();
	return context;
}

CUresult sim_context_new(struct sim_device *device, unsigned flags, struct sim_context **out)
{
	struct sim_context *context = allocate(device, flags);
	CUresult err;

	if (!context)
		return CUDA_ERROR_OUT_OF_MEMORY;
	err = start(context);
	if (!err)
		*out = context;
	return err;
}

void sim_context_end(struct sim_context *context)
{
	sim_wait_context(context);
	__atomic_store_n(&context->alive, false, __ATOMIC_RELEASE);
	while (context->modules)
		sim_module_free(context->modules);
	sim_textures_end(context);
	while (context->events)
		sim_event_free(context->events);
	while (context->streams)
		sim_stream_free(context->streams);
	context->legacy = NULL;
	sim_alloc_drop_context(context);
	if (context->primary) {
		sim_pools_reset(context->device);
		(void)cuDeviceGraphMemTrim((CUdevice)(context->device - sim.devices));
	}
	sim_limits_end(context);
	count_context(context, false);
	sim_uncharge(context->device, context->bytes);
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!out || flags & ~CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	err = sim_context_new(device, flags, out);
	if (!err)
		sim_push(*out);
	if (!err)
		sim_open_constructor();
	return err;
}

CU_API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
	return create(out, flags, device);
}

CU_API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
	return create(out, flags, device);
}

/* cuCtxCreate_v3 does not support affinity parameters, which request parts of a GPU. cuCtxCreate_v4
 * ignores creation parameters, which request parts of a GPU or CIG. */
CU_API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags,
			       CUdevice device)
{
	if (count < 0 || (count && !affinity))
		return CUDA_ERROR_INVALID_VALUE;
	return count ? CUDA_ERROR_NOT_SUPPORTED : create(out, flags, device);
}

CU_API CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned flags, CUdevice device)
{
	(void)params;
	return create(out, flags, device);
}

static CUresult destroy(CUcontext handle)
{
	struct sim_context *context;
	CUresult err = handle ? sim_context_of(handle, &context) : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	if (context->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	sim_context_end(context);
	sim_pop(context);
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxDestroy(CUcontext handle)
{
	return destroy(handle);
}

CU_API CUresult cuCtxDestroy_v2(CUcontext handle)
{
	return destroy(handle);
}

CU_API CUresult cuCtxAttach(CUcontext *out, unsigned flags)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (err)
		return err;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = context;
	return CUDA_SUCCESS;
}

CU_API CUresult cuCtxDetach(CUcontext handle)
{
	struct sim_context *context;

	return sim_context_of(handle, &context);
}

/* ---- primary contexts ---- */

/* primary_lock returns the lock with which only one thread at a time creates or ends a device's
 * primary context. */
static pthread_mutex_t *primary_lock(const struct sim_device *device)
{
	static pthread_mutex_t locks[GS_MAX_GPUS] = {[0 ... GS_MAX_GPUS - 1] = PTHREAD_MUTEX_INITIALIZER};

	return &locks[device - sim.devices];
}

CU_API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(primary_lock(device));
	if (!device->primary) {
		device->primary = allocate(device, 0);
		if (device->primary)
			device->primary->primary = true;
		else
			err = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!err && !sim_is_alive(device->primary))
		err = start(device->primary);
	if (!err) {
		device->primary->references++;
		*out = device->primary;
	}
	pthread_mutex_unlock(primary_lock(device));
	if (!err)
		sim_open_constructor();
	return err;
}

static CUresult release_locked(struct sim_device *device, bool all)
{
	if (!device->primary || !sim_is_alive(device->primary))
		return all ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
	if (all)
		device->primary->references = 0;
	else if (device->primary->references == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	else
		device->primary->references--;
	if (device->primary->references == 0)
		sim_context_end(device->primary);
	return CUDA_SUCCESS;
}

static CUresult release(CUdevice ordinal, bool all)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	pthread_mutex_lock(primary_lock(device));
	err = release_locked(device, all);
	pthread_mutex_unlock(primary_lock(device));
	return err;
}

CU_API CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	return release(device, false);
}

CU_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	return release(device, false);
}

CU_API CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	return release(device, true);
}

CU_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	return release(device, true);
}

CU_API CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = device->primary ? device->primary->flags : 0;
	*active = device->primary && sim_is_alive(device->primary);
	return CUDA_SUCCESS;
}

static CUresult set_primary_flags(CUdevice ordinal, unsigned flags)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (flags & ~CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device->primary) {
		device->primary = allocate(device, flags);
		if (!device->primary)
			return CUDA_ERROR_OUT_OF_MEMORY;
		device->primary->primary = true;
	}
	device->primary->flags = flags;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
	return set_primary_flags(device, flags);
}

CU_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	return set_primary_flags(device, flags);
}

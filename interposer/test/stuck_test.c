// SPDX-License-Identifier: Apache-2.0

// This test covers launches while another thread is stuck in the driver with the meter. The charge
// is the time that the work takes.

#include <pthread.h>

#include "base/now.h"
#include "base/number.h"
#include "base/sleep.h"
#include "check.h"
#include "events.h"
#include "process.h"
#include "stand_in.h"
#include "time/meter.h"

static const uint64_t long_ns = 600000000;

static struct vg_state *state;

static uint64_t gpu_until; // end of the GPU's work
static uint64_t length;    // of the next kernel

static uint64_t driver_time(void)
{
	return vg_max(gpu_until, vg_now());
}

static CUresult driver_launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			      unsigned by, unsigned bz, unsigned shared, CUstream stream, void **parameters,
			      void **extra)
{
	CHECK(function && gx && gy && gz && bx && by && bz && !shared && stream && !parameters && !extra);
	gpu_until = driver_time() + length;
	return CUDA_SUCCESS;
}

static CUresult driver_context(CUstream stream, CUcontext *context)
{
	CHECK(stream);
	*context = (CUcontext)0x1000;
	return CUDA_SUCCESS;
}

static CUresult driver_current(CUcontext *context)
{
	*context = (CUcontext)0x1000;
	return CUDA_SUCCESS;
}

static CUresult driver_device(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

static CUresult driver_query(CUstream stream)
{
	CHECK(stream);
	return gpu_until > vg_now() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult driver_no_memory(void **memory, size_t bytes, unsigned flags)
{
	CHECK(memory && bytes && flags);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

// The library defines this function, which a program calls.
CUresult vg_cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   CUstream, void **, void **);

// launch launches a kernel of a new kind.
static void launch(uint64_t ns)
{
	static uintptr_t kernel = 0x5000;

	length = ns;
	kernel += 16;
	CHECK_EQUAL(vg_cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, (CUstream)0x2000, NULL, NULL), CUDA_SUCCESS);
}

static uint64_t spent(void)
{
	return vg_load(&state->pages.usage->header.devices[0].spent_ns);
}

static _Atomic bool taken, released;

static void *hold(void *meter)
{
	CHECK(vg_meter_lock(meter, long_ns));
	atomic_store(&taken, true);
	while (!atomic_load(&released))
		vg_sleep_until(vg_now() + 1000000);
	vg_meter_unlock(meter);
	return NULL;
}

// test_stuck launches a long kernel, and another kernel when the first kernel is done. The meter is
// stuck during the first launch, and with `on` also during the second launch.
static void test_stuck(bool on)
{
	struct vg_meter *meter = atomic_load(&state->meters[0]);
	uint64_t before = spent();
	pthread_t thread;

	atomic_store(&taken, false);
	atomic_store(&released, false);
	CHECK_EQUAL(pthread_create(&thread, NULL, hold, meter), 0);
	while (!atomic_load(&taken))
		continue;
	launch(long_ns);
	atomic_store(&released, !on);
	vg_sleep_until(gpu_until + 1000000);
	launch(0);
	CHECK(spent() - before >= long_ns - 1000000);
	CHECK(spent() - before < 2 * long_ns);
	atomic_store(&released, true);
	CHECK_EQUAL(pthread_join(thread, NULL), 0);
}

int main(void)
{
	struct vg_limits_device device = test_device(1, UINT64_C(1) << 30);

	events_install(driver_time, vg_now);
	DRIVER(cuLaunchKernel, driver_launch);
	DRIVER(cuStreamGetCtx, driver_context);
	DRIVER(cuCtxGetCurrent, driver_current);
	DRIVER(cuCtxGetDevice, driver_device);
	DRIVER(cuStreamQuery, driver_query);
	DRIVER(cuMemHostAlloc, driver_no_memory);
	device.compute_ppm = 990000;
	state = test_process(&device, 1);
	launch(0);
	test_stuck(true);
	test_stuck(false);
	return 0;
}

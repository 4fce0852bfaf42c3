// SPDX-License-Identifier: Apache-2.0

#include "one_pool.h"

#include <string.h>

#include "base/number.h"
#include "fixture.h"
#include "memory/pool_held.h"
#include "process.h"
#include "stand_in.h"

enum { step = 2 << 20 };

const CUmemPoolProps on_device = {
	.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};

// ---- a driver with one pool, which is also the graph memory

struct one_pool driver;

void driver_alloc(uint64_t bytes)
{
	driver.used += bytes;
	driver.held = vg_max(driver.held, vg_round_up(driver.used, step));
}

void driver_trim(void)
{
	driver.held = vg_round_up(driver.used, step);
}

static CUresult driver_answer(bool held, void *value)
{
	void (*meanwhile)(void) = driver.meanwhile;

	if (driver.silent)
		return CUDA_ERROR_NOT_FOUND;
	memcpy(value, held ? &driver.held : &driver.used, sizeof driver.used);
	if (held && meanwhile) {
		driver.meanwhile = NULL;
		meanwhile();
	}
	return CUDA_SUCCESS;
}

static CUresult driver_pool_attribute(CUmemoryPool asked, int attribute, void *value)
{
	CHECK(asked == handle || asked == other);
	CHECK(!driver.destroyed);
	return driver_answer(attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, value);
}

static CUresult driver_graph_attribute(CUdevice device, int attribute, void *value)
{
	CHECK_EQUAL(device, 0);
	return driver_answer(attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, value);
}

static CUresult driver_trim_to(CUmemoryPool asked, size_t keep)
{
	CHECK(asked == handle && keep == 0 && driver.mode == CU_STREAM_CAPTURE_MODE_RELAXED);
	driver.trims++;
	driver_trim();
	return CUDA_SUCCESS;
}

static CUresult driver_trim_graphs(CUdevice device)
{
	CHECK_EQUAL(device, 0);
	driver_trim();
	return CUDA_SUCCESS;
}

static CUresult driver_capture_mode(int *mode)
{
	int before = driver.mode;

	if (driver.strict)
		return CUDA_ERROR_NOT_FOUND;
	driver.mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}

static CUresult driver_current(CUdevice *device)
{
	*device = 0;
	return CUDA_SUCCESS;
}

static CUresult driver_pointer_attribute(void *value, int attribute, CUdeviceptr address)
{
	size_t bytes = 60 * mib;

	CHECK_EQUAL(address, 1);
	if (attribute == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
		memcpy(value, &handle, sizeof handle);
	else
		memcpy(value, &bytes, sizeof bytes);
	return CUDA_SUCCESS;
}

// ---- streams, which reach their events in the order of creation

struct one_pool_events events;

static CUresult driver_event(CUevent *event, unsigned flags)
{
	CHECK_EQUAL(flags, CU_EVENT_DISABLE_TIMING);
	if (events.creation)
		return events.creation;
	*event = (CUevent)++events.created;
	events.left++;
	return CUDA_SUCCESS;
}

static CUresult driver_record(CUevent event, CUstream stream)
{
	CHECK((uintptr_t)event == events.created && !stream);
	return events.recording;
}

static CUresult driver_record_per_thread(CUevent event, CUstream stream)
{
	events.per_thread++;
	return driver_record(event, stream);
}

static CUresult driver_query(CUevent event)
{
	return (uintptr_t)event > events.reached ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult driver_drop(CUevent event)
{
	CHECK((uintptr_t)event <= events.created);
	events.left--;
	return CUDA_SUCCESS;
}

// ---- two GPUs, of which the container has the first

static CUresult driver_count(int *count)
{
	*count = 2;
	return CUDA_SUCCESS;
}

static CUresult driver_default_pool(CUmemoryPool *of, CUdevice device)
{
	*of = device == 0 ? other : NULL;
	return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

void one_pool_driver(void)
{
	DRIVER(cuPointerGetAttribute, driver_pointer_attribute);
	DRIVER(cuMemPoolGetAttribute, driver_pool_attribute);
	DRIVER(cuDeviceGetGraphMemAttribute, driver_graph_attribute);
	DRIVER(cuMemPoolTrimTo, driver_trim_to);
	DRIVER(cuDeviceGraphMemTrim, driver_trim_graphs);
	DRIVER(cuThreadExchangeStreamCaptureMode, driver_capture_mode);
	DRIVER(cuCtxGetDevice, driver_current);
	DRIVER(cuEventCreate, driver_event);
	DRIVER(cuEventRecord, driver_record);
	DRIVER(cuEventRecord_ptsz, driver_record_per_thread);
	DRIVER(cuEventQuery, driver_query);
	DRIVER(cuEventDestroy_v2, driver_drop);
	DRIVER(cuDeviceGetCount, driver_count);
	DRIVER(cuDeviceGetDefaultMemPool, driver_default_pool);
}

// ---- a process with some memory in the pool

struct vg_state *process;
struct vg_pool *pool;
struct vg_claim first;

uint64_t on_page(void)
{
	const struct vg_slot_device *own = vg_slot_device(&process->pages, (uint32_t)process->pages.slot, 0);

	return vg_load(&own->used) + vg_load(&own->pending);
}

CUresult claim(struct vg_claim *to, uint64_t bytes)
{
	return vg_pool_claim(to, pool, VG_WAY_ASYNC, bytes);
}

void begin(uint64_t limit, uint64_t held, uint64_t used, CUmemoryPool which)
{
	struct vg_limits_device device = test_device(1, limit);

	memset(vg_state_new(), 0, sizeof *process); // the state of a forked child
	process = test_process(&device, 1);
	memset(&driver, 0, sizeof driver);
	if (which)
		vg_pool_lifetime_made(process, which, &on_device);
	pool = vg_pool_of(process, which, 0);
	CHECK_EQUAL(claim(&first, held), CUDA_SUCCESS);
	driver_alloc(held);
	CHECK(vg_pool_claim_settle(&first, CUDA_SUCCESS));
	driver.used = used;
	CHECK_EQUAL(on_page(), held);
}

void destroy(void)
{
	uint64_t used = 0;
	struct vg_pool *ending = vg_pool_lifetime_ending(process, handle, &used);

	CHECK(ending == pool);
	CHECK_EQUAL(used, driver.used);
	vg_pool_lifetime_ended(process, ending, used, CUDA_SUCCESS);
}

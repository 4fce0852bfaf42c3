// SPDX-License-Identifier: Apache-2.0

#include "model.h"

#include <string.h>

#include "check.h"
#include "driver/driver.h"
#include "pages/held.h"
#include "stand_in.h"

enum { failed = 999 };

int model_current = -1;

static void (*others)(void);

static uint64_t chance = 1;

uint64_t model_below(uint64_t bound)
{
	chance ^= chance >> 12;
	chance ^= chance << 25;
	chance ^= chance >> 27;
	return (chance * UINT64_C(2685821657736338717) >> 16) % bound;
}

static const uint64_t context_bytes = 300 * MIB; // less than the expected size
static const uint64_t model_place_bytes = 64 * MIB;

static struct {
	struct {
		bool alive;
		uint64_t heap;
	} contexts[model_contexts];
	unsigned retained;
	struct {
		unsigned piece; // one more than its first unit; 0: free
		int context;
	} units[model_units];
	struct {
		uint64_t bytes;
		int context;
	} arrays[model_arrays];
	struct {
		unsigned handles;
		unsigned mappings;
		unsigned descriptors;
		uint64_t bytes;
	} memories[model_memories];
	int mapped[model_places]; // one more than the memory's number
} driver;

// is_kept reports whether any reference holds the memory.
static bool is_kept(int memory)
{
	return driver.memories[memory].handles || driver.memories[memory].mappings ||
	       driver.memories[memory].descriptors;
}

uint64_t model_held(void)
{
	uint64_t bytes = 0;

	for (int i = 0; i < model_contexts; i++)
		bytes += driver.contexts[i].alive ? context_bytes + driver.contexts[i].heap : 0;
	for (int i = 0; i < model_units; i += 4)
		if (driver.units[i].piece || driver.units[i + 1].piece || driver.units[i + 2].piece ||
		    driver.units[i + 3].piece)
			bytes += 4 * model_unit;
	for (int i = 0; i < model_arrays; i++)
		bytes += driver.arrays[i].bytes;
	for (int i = 0; i < model_memories; i++)
		if (is_kept(i))
			bytes += driver.memories[i].bytes;
	return bytes;
}

bool model_has_context(void)
{
	for (int i = 0; i < model_contexts; i++)
		if (driver.contexts[i].alive)
			return true;
	return false;
}

// answer runs other threads at the end of a driver's call, and returns the call's result.
static CUresult answer(CUresult result)
{
	others();
	return result;
}

static bool fails(void)
{
	others();
	return model_below(16) == 0;
}

CUcontext model_context(int context)
{
	return (CUcontext)(uintptr_t)((unsigned)(context + 1) << 16);
}

int model_context_number(CUcontext handle)
{
	return (int)((uintptr_t)handle >> 16) - 1;
}

static CUresult driver_device(CUdevice *device)
{
	*device = 0;
	return model_current < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult driver_current(CUcontext *context)
{
	*context = model_current < 0 ? NULL : model_context(model_current);
	return CUDA_SUCCESS;
}

// driver_place finds room for a piece. Small pieces share a block.
static int driver_place(int count)
{
	int step = count < 4 ? 1 : 4;

	for (int at = 0; at + count <= model_units; at += step) {
		int used = 0;

		if (count < 4 && at / 4 != (at + count - 1) / 4)
			continue;
		for (int i = at; i < at + count; i++)
			used += driver.units[i].piece != 0;
		if (!used)
			return at;
	}
	return -1;
}

static CUresult driver_alloc(CUdeviceptr *address, size_t bytes)
{
	int count = (int)((bytes + model_unit - 1) / model_unit);
	int at;

	if (fails())
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	count = count > 4 ? (count + 3) / 4 * 4 : count;
	at = driver_place(count);
	if (at < 0)
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	for (int i = at; i < at + count; i++) {
		driver.units[i].piece = (unsigned)at + 1;
		driver.units[i].context = model_current;
	}
	*address = 2 * MIB + (uint64_t)at * model_unit;
	return answer(CUDA_SUCCESS);
}

static CUresult driver_free(CUdeviceptr address)
{
	unsigned piece = (unsigned)((address - 2 * MIB) / model_unit) + 1;

	if (fails())
		return answer(failed);
	CHECK(driver.units[piece - 1].piece == piece);
	for (int i = 0; i < model_units; i++)
		if (driver.units[i].piece == piece)
			driver.units[i].piece = 0;
	return answer(CUDA_SUCCESS);
}

static CUresult driver_array(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
	if (shape->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) {
		*array = (CUarray)(uintptr_t)(shape->Width << 20);
		return answer(CUDA_SUCCESS);
	}
	if (fails())
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	for (int i = 0; i < model_arrays; i++) {
		if (driver.arrays[i].bytes)
			continue;
		driver.arrays[i].bytes = shape->Width * MIB;
		driver.arrays[i].context = model_current;
		*array = (CUarray)(uintptr_t)(i + 1);
		return answer(CUDA_SUCCESS);
	}
	return answer(CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult driver_array_needs(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray array, CUdevice device)
{
	CHECK_EQUAL(device, 0);
	needs->size = ((uintptr_t)array >> 20) * MIB;
	return CUDA_SUCCESS;
}

static CUresult driver_array_end(CUarray array)
{
	uintptr_t number = (uintptr_t)array;

	if (number > model_arrays) // a second handle of the array
		return CUDA_SUCCESS;
	if (fails())
		return answer(failed);
	CHECK(driver.arrays[number - 1].bytes);
	driver.arrays[number - 1].bytes = 0;
	return answer(CUDA_SUCCESS);
}

static CUresult driver_create(CUmemGenericAllocationHandle *handle, size_t bytes,
			      const CUmemAllocationProp *properties, unsigned long long flags)
{
	CHECK(properties->location.id == 0 && flags == 0);
	if (fails())
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	for (int i = 0; i < model_memories; i++) {
		if (is_kept(i))
			continue;
		driver.memories[i].bytes = bytes;
		driver.memories[i].handles = 1;
		*handle = (CUmemGenericAllocationHandle)i + 1;
		return answer(CUDA_SUCCESS);
	}
	return answer(CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult driver_release(CUmemGenericAllocationHandle handle)
{
	if (fails())
		return answer(failed);
	CHECK(driver.memories[handle - 1].handles);
	driver.memories[handle - 1].handles--;
	return answer(CUDA_SUCCESS);
}

uint64_t model_address(int place)
{
	return (UINT64_C(1) << 40) + (uint64_t)place * model_place_bytes;
}

static int address_place(uint64_t address)
{
	return (int)((address - (UINT64_C(1) << 40)) / model_place_bytes);
}

static CUresult driver_map(CUdeviceptr address, size_t bytes, size_t offset,
			   CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	int place = address_place(address);

	CHECK(offset == 0 && flags == 0);
	if (fails())
		return answer(failed);
	CHECK(driver.memories[handle - 1].handles && driver.memories[handle - 1].bytes == bytes);
	CHECK(!driver.mapped[place]);
	driver.mapped[place] = (int)handle;
	driver.memories[handle - 1].mappings++;
	return answer(CUDA_SUCCESS);
}

static CUresult driver_unmap(CUdeviceptr address, size_t bytes)
{
	int place = address_place(address);

	(void)bytes;
	if (fails())
		return answer(failed);
	CHECK(driver.mapped[place]);
	driver.memories[driver.mapped[place] - 1].mappings--;
	driver.mapped[place] = 0;
	return answer(CUDA_SUCCESS);
}

static CUresult driver_export(void *descriptor, CUmemGenericAllocationHandle handle, int type,
			      unsigned long long flags)
{
	CHECK(type == 1 && flags == 0);
	if (fails())
		return answer(failed);
	CHECK(driver.memories[handle - 1].handles);
	driver.memories[handle - 1].descriptors++;
	*(int *)descriptor = (int)handle;
	return answer(CUDA_SUCCESS);
}

bool model_close(int memory)
{
	if (!driver.memories[memory].descriptors)
		return false;
	driver.memories[memory].descriptors--;
	return true;
}

static CUresult driver_again(CUmemGenericAllocationHandle *handle, void *address)
{
	int place = address_place((uint64_t)(uintptr_t)address);

	if (fails())
		return answer(failed);
	CHECK(driver.mapped[place]);
	*handle = (CUmemGenericAllocationHandle)driver.mapped[place];
	driver.memories[*handle - 1].handles++;
	return answer(CUDA_SUCCESS);
}

static void driver_context_end(int context)
{
	CHECK(driver.contexts[context].alive);
	driver.contexts[context].alive = false;
	driver.contexts[context].heap = 0;
	for (int i = 0; i < model_units; i++)
		if (driver.units[i].context == context)
			driver.units[i].piece = 0;
	for (int i = 0; i < model_arrays; i++)
		if (driver.arrays[i].context == context)
			driver.arrays[i].bytes = 0;
}

static CUresult driver_context(CUcontext *context, unsigned flags, CUdevice device)
{
	CHECK(flags == 0 && device == 0);
	if (fails())
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	for (int i = 1; i < model_contexts; i++) {
		if (driver.contexts[i].alive)
			continue;
		driver.contexts[i].alive = true;
		*context = model_context(i);
		return answer(CUDA_SUCCESS);
	}
	return answer(CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult driver_context_destroy(CUcontext context)
{
	if (fails())
		return answer(failed);
	driver_context_end(model_context_number(context));
	return answer(CUDA_SUCCESS);
}

static CUresult driver_retain(CUcontext *context, CUdevice device)
{
	CHECK_EQUAL(device, 0);
	if (fails())
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	driver.contexts[0].alive = true;
	driver.retained++;
	*context = model_context(0);
	return answer(CUDA_SUCCESS);
}

static CUresult driver_let_go(CUdevice device)
{
	CHECK_EQUAL(device, 0);
	if (fails())
		return answer(failed);
	if (--driver.retained == 0)
		driver_context_end(0);
	return answer(CUDA_SUCCESS);
}

static CUresult driver_reset(CUdevice device)
{
	CHECK_EQUAL(device, 0);
	if (fails())
		return answer(failed);
	driver.retained = 0;
	driver_context_end(0);
	return answer(CUDA_SUCCESS);
}

static CUresult driver_state(CUdevice device, unsigned *flags, int *active)
{
	CHECK_EQUAL(device, 0);
	*flags = 0;
	*active = driver.contexts[0].alive;
	return CUDA_SUCCESS;
}

static CUresult driver_get_limit(size_t *value, int limit)
{
	CHECK_EQUAL(limit, CU_LIMIT_MALLOC_HEAP_SIZE);
	*value = 8 * MIB + driver.contexts[model_current].heap;
	return CUDA_SUCCESS;
}

static CUresult driver_set_limit(int limit, size_t value)
{
	CHECK_EQUAL(limit, CU_LIMIT_MALLOC_HEAP_SIZE);
	if (fails())
		return answer(failed);
	driver.contexts[model_current].heap = value - 8 * MIB;
	return answer(CUDA_SUCCESS);
}

// ---- the agent

enum vg_held_result vg_held_ask(const char *path, uint32_t slot, struct vg_held *held)
{
	(void)path;
	(void)slot;
	others();
	held->count = 1;
	memset(held->gpus[0].uuid, 1, sizeof held->gpus[0].uuid);
	held->gpus[0].bytes = model_held();
	others();
	// The agent cannot measure a process without a context.
	held->count = held->gpus[0].bytes && model_has_context() ? 1 : 0;
	return model_below(4) ? VG_HELD_ANSWERED : VG_HELD_SILENT;
}

void model_install(void (*meanwhile)(void))
{
	others = meanwhile;
	DRIVER(cuCtxGetDevice, driver_device);
	DRIVER(cuCtxGetCurrent, driver_current);
	DRIVER(cuMemAlloc_v2, driver_alloc);
	DRIVER(cuMemFree_v2, driver_free);
	DRIVER(cuArray3DCreate_v2, driver_array);
	DRIVER(cuArrayGetMemoryRequirements, driver_array_needs);
	DRIVER(cuArrayDestroy, driver_array_end);
	DRIVER(cuMemCreate, driver_create);
	DRIVER(cuMemRelease, driver_release);
	DRIVER(cuMemMap, driver_map);
	DRIVER(cuMemUnmap, driver_unmap);
	DRIVER(cuMemExportToShareableHandle, driver_export);
	DRIVER(cuMemRetainAllocationHandle, driver_again);
	DRIVER(cuCtxCreate_v2, driver_context);
	DRIVER(cuCtxDestroy_v2, driver_context_destroy);
	DRIVER(cuDevicePrimaryCtxRetain, driver_retain);
	DRIVER(cuDevicePrimaryCtxRelease_v2, driver_let_go);
	DRIVER(cuDevicePrimaryCtxReset_v2, driver_reset);
	DRIVER(cuDevicePrimaryCtxGetState, driver_state);
	DRIVER(cuCtxGetLimit, driver_get_limit);
	DRIVER(cuCtxSetLimit, driver_set_limit);
}

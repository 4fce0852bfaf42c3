// SPDX-License-Identifier: Apache-2.0

// What a process is charged with is never less than what it holds, at any moment of
// any call, whatever other threads do at that moment. The driver here is a few lines
// that hand handles out again as soon as they are free, and fail at times; within each
// of its calls, before it has done its work and after, other threads do theirs. So
// they do while the management library is asked what the process holds.

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "claim.h"
#include "fixture.h"
#include "slot.h"

#define MIB (UINT64_C(1) << 20)

enum { rounds = 60000, most_depth = 3, failed = 999 };

static struct vg_state *state;

static uint64_t chance = 1;

static uint64_t below(uint64_t bound)
{
	chance ^= chance >> 12;
	chance ^= chance << 25;
	chance ^= chance >> 27;
	return (chance * UINT64_C(2685821657736338717) >> 16) % bound;
}

// ---- the driver

enum {
	contexts = 6, // the first is the primary one
	units = 4 * 24, // of a quarter of a block of 2 MiB
	arrays = 32,
	memories = 16,
	places = 16, // where memory can be mapped
};

static const uint64_t unit = 2 * MIB / 4;
static const uint64_t context_bytes = 300 * MIB; // less than is expected of one
static const uint64_t place_bytes = 64 * MIB;

static struct {
	int current;
	struct {
		bool alive;
		uint64_t heap;
	} contexts[contexts];
	unsigned retained;
	struct {
		unsigned piece; // one more than its first unit; 0: free
		int context;
	} units[units];
	struct {
		uint64_t bytes;
		int context;
	} arrays[arrays];
	struct {
		unsigned handles;
		unsigned mappings;
		uint64_t bytes;
	} memories[memories];
	int mapped[places]; // one more than the memory's number
} driver;

static uint64_t physical(void)
{
	uint64_t bytes = 0;

	for (int i = 0; i < contexts; i++)
		bytes += driver.contexts[i].alive ? context_bytes + driver.contexts[i].heap : 0;
	for (int i = 0; i < units; i += 4)
		if (driver.units[i].piece || driver.units[i + 1].piece || driver.units[i + 2].piece ||
		    driver.units[i + 3].piece)
			bytes += 4 * unit;
	for (int i = 0; i < arrays; i++)
		bytes += driver.arrays[i].bytes;
	for (int i = 0; i < memories; i++)
		if (driver.memories[i].handles || driver.memories[i].mappings)
			bytes += driver.memories[i].bytes;
	return bytes;
}

static uint64_t on_page(void)
{
	const struct vg_slot_device *own = vg_slot_device(&state->pages, (uint32_t)state->pages.slot, 0);

	return vg_load(&own->pending) + vg_load(&own->used);
}

static void anybody(void);

// others lets other threads do something; each has a current context of its own.
static void others(void)
{
	static int depth;
	int current = driver.current;

	CHECK(on_page() >= physical());
	if (depth == most_depth)
		return;
	depth++;
	for (uint64_t i = below(3); i > 0; i--)
		anybody();
	depth--;
	driver.current = current;
	CHECK(on_page() >= physical());
}

// answer ends a call of the driver.
static CUresult answer(CUresult result)
{
	others();
	return result;
}

static bool fails(void)
{
	others();
	return below(16) == 0;
}

static CUcontext context_handle(int context)
{
	return (CUcontext)(uintptr_t)((unsigned)(context + 1) << 16);
}

static int context_number(CUcontext handle)
{
	return (int)((uintptr_t)handle >> 16) - 1;
}

static CUresult driver_device(CUdevice *device)
{
	*device = 0;
	return driver.current < 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

static CUresult driver_current(CUcontext *context)
{
	*context = driver.current < 0 ? NULL : context_handle(driver.current);
	return CUDA_SUCCESS;
}

// driver_place finds room for a piece: small ones share a block.
static int driver_place(int count)
{
	int step = count < 4 ? 1 : 4;

	for (int at = 0; at + count <= units; at += step) {
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
	int count = (int)((bytes + unit - 1) / unit);
	int at;

	if (fails())
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	count = count > 4 ? (count + 3) / 4 * 4 : count;
	at = driver_place(count);
	if (at < 0)
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	for (int i = at; i < at + count; i++) {
		driver.units[i].piece = (unsigned)at + 1;
		driver.units[i].context = driver.current;
	}
	*address = 2 * MIB + (uint64_t)at * unit;
	return answer(CUDA_SUCCESS);
}

static CUresult driver_free(CUdeviceptr address)
{
	unsigned piece = (unsigned)((address - 2 * MIB) / unit) + 1;

	if (fails())
		return answer(failed);
	CHECK(driver.units[piece - 1].piece == piece);
	for (int i = 0; i < units; i++)
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
	for (int i = 0; i < arrays; i++) {
		if (driver.arrays[i].bytes)
			continue;
		driver.arrays[i].bytes = shape->Width * MIB;
		driver.arrays[i].context = driver.current;
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

	if (number > arrays) // a twin
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
	for (int i = 0; i < memories; i++) {
		if (driver.memories[i].handles || driver.memories[i].mappings)
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

static uint64_t place_address(int place)
{
	return (UINT64_C(1) << 40) + (uint64_t)place * place_bytes;
}

static int address_place(uint64_t address)
{
	return (int)((address - (UINT64_C(1) << 40)) / place_bytes);
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
	for (int i = 0; i < units; i++)
		if (driver.units[i].context == context)
			driver.units[i].piece = 0;
	for (int i = 0; i < arrays; i++)
		if (driver.arrays[i].context == context)
			driver.arrays[i].bytes = 0;
}

static CUresult driver_context(CUcontext *context, unsigned flags, CUdevice device)
{
	CHECK(flags == 0 && device == 0);
	if (fails())
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	for (int i = 1; i < contexts; i++) {
		if (driver.contexts[i].alive)
			continue;
		driver.contexts[i].alive = true;
		*context = context_handle(i);
		return answer(CUDA_SUCCESS);
	}
	return answer(CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult driver_context_destroy(CUcontext context)
{
	if (fails())
		return answer(failed);
	driver_context_end(context_number(context));
	return answer(CUDA_SUCCESS);
}

static CUresult driver_retain(CUcontext *context, CUdevice device)
{
	CHECK_EQUAL(device, 0);
	if (fails())
		return answer(CUDA_ERROR_OUT_OF_MEMORY);
	driver.contexts[0].alive = true;
	driver.retained++;
	*context = context_handle(0);
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
	*value = 8 * MIB + driver.contexts[driver.current].heap;
	return CUDA_SUCCESS;
}

static CUresult driver_set_limit(int limit, size_t value)
{
	CHECK_EQUAL(limit, CU_LIMIT_MALLOC_HEAP_SIZE);
	if (fails())
		return answer(failed);
	driver.contexts[driver.current].heap = value - 8 * MIB;
	return answer(CUDA_SUCCESS);
}

// ---- the management library, as physical.c has it

enum { own_pid = 1 };

struct listed {
	unsigned pid;
	unsigned long long bytes;
	unsigned instances[2];
};

static int management_by_uuid(const char *uuid, void **device)
{
	CHECK(strncmp(uuid, "GPU-", 4) == 0);
	*device = &driver;
	return 0;
}

static int management_processes(void *device, unsigned *count, struct listed *processes)
{
	CHECK(device == &driver && *count > 0);
	others();
	*count = 1;
	processes[0].pid = own_pid;
	processes[0].bytes = physical();
	others();
	return 0;
}

static struct {
	int (*init)(void);
	int (*by_uuid)(const char *uuid, void **device);
	int (*processes)(void *device, unsigned *count, struct listed *processes);
	bool usable;
} management = {NULL, management_by_uuid, management_processes, true};

// ---- a program that keeps the rules: nothing is freed twice, or used by one thread
// when another has freed it

CUresult vg_cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult vg_cuMemFree_v2(CUdeviceptr address);
CUresult vg_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape);
CUresult vg_cuArrayDestroy(CUarray array);
CUresult vg_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
			const CUmemAllocationProp *properties, unsigned long long flags);
CUresult vg_cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult vg_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
CUresult vg_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
		     CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult vg_cuMemUnmap(CUdeviceptr address, size_t bytes);
CUresult vg_cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult vg_cuCtxDestroy_v2(CUcontext context);
CUresult vg_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult vg_cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult vg_cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult vg_cuCtxSetLimit(int limit, size_t value);

enum { pieces = units + arrays };

enum piece_kind { NOTHING, LINEAR, ARRAY };

static struct {
	struct {
		bool there;
		unsigned busy; // calls under way with it
	} contexts[contexts];
	unsigned retained;
	struct {
		enum piece_kind kind;
		uint64_t key;
		int context;
	} pieces[pieces];
	// Each is mapped at its own place, if at all.
	struct {
		uint64_t bytes;
		uint64_t handle;
		unsigned handles;
		bool mapped;
		bool handle_busy;
		bool mapping_busy;
		unsigned releases; // under way
	} memories[places];
} program;

static unsigned done[12];

// locked says whether a call is under way that others would wait for.
static bool locked(void)
{
	return atomic_load(&state->contexts.word) || atomic_load(&state->primary.word);
}

static void keep(enum piece_kind kind, uint64_t key, int context)
{
	for (int i = 0; i < pieces; i++) {
		if (program.pieces[i].kind)
			continue;
		program.pieces[i].kind = kind;
		program.pieces[i].key = key;
		program.pieces[i].context = context;
		return;
	}
	CHECK(!"more pieces than the driver has room for");
}

static void take_linear(int context)
{
	CUdeviceptr address = 0;

	if (vg_cuMemAlloc_v2(&address, (1 + below(12)) * unit - below(2) * 512))
		return;
	keep(LINEAR, address, context);
	done[0]++;
}

static void take_array(int context)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1 + below(9), .Format = 1, .NumChannels = 1};
	CUarray array = NULL;

	if (vg_cuArray3DCreate_v2(&array, &shape))
		return;
	keep(ARRAY, (uintptr_t)array, context);
	done[1]++;
}

static void give(int context)
{
	int at = (int)below(pieces);
	enum piece_kind kind = program.pieces[at].kind;
	uint64_t key = program.pieces[at].key;

	if (!kind || program.pieces[at].context != context)
		return;
	program.pieces[at].kind = NOTHING;
	if (kind == LINEAR ? vg_cuMemFree_v2(key) : vg_cuArrayDestroy((CUarray)(uintptr_t)key))
		keep(kind, key, context);
	else
		done[2]++;
}

static void raise(int context)
{
	(void)context;
	done[3] += !vg_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, (8 + below(50) * 2) * MIB);
}

static void in_context(void (*call)(int context))
{
	int context = (int)below(contexts);

	if (!program.contexts[context].there)
		return;
	driver.current = context;
	program.contexts[context].busy++;
	call(context);
	program.contexts[context].busy--;
}

static void create(int at)
{
	const CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	uint64_t bytes = 2 * MIB * (1 + below(8));

	if (program.memories[at].bytes)
		return;
	program.memories[at].bytes = bytes;
	if (vg_cuMemCreate(&program.memories[at].handle, bytes, &properties, 0))
		program.memories[at].bytes = 0;
	else
		program.memories[at].handles = 1;
	done[4] += program.memories[at].handles;
}

// settle forgets memory that nothing leads to any more.
static void settle(int at)
{
	if (!program.memories[at].handles && !program.memories[at].mapped &&
	    !program.memories[at].mapping_busy && !program.memories[at].releases)
		program.memories[at].bytes = 0;
}

static void release(int at)
{
	if (!program.memories[at].handles || program.memories[at].handle_busy)
		return;
	program.memories[at].handles--;
	program.memories[at].releases++;
	if (vg_cuMemRelease(program.memories[at].handle))
		program.memories[at].handles++;
	else
		done[5]++;
	program.memories[at].releases--;
	settle(at);
}

static void map(int at)
{
	if (!program.memories[at].handles || program.memories[at].handle_busy ||
	    program.memories[at].mapped || program.memories[at].mapping_busy)
		return;
	program.memories[at].handle_busy = program.memories[at].mapping_busy = true;
	program.memories[at].mapped = !vg_cuMemMap(place_address(at), program.memories[at].bytes, 0,
						   program.memories[at].handle, 0);
	program.memories[at].handle_busy = program.memories[at].mapping_busy = false;
	done[6] += program.memories[at].mapped;
}

static void unmap(int at)
{
	if (!program.memories[at].mapped || program.memories[at].mapping_busy)
		return;
	program.memories[at].mapping_busy = true;
	program.memories[at].mapped = vg_cuMemUnmap(place_address(at), program.memories[at].bytes);
	program.memories[at].mapping_busy = false;
	done[7] += !program.memories[at].mapped;
	settle(at);
}

// again asks for the handle by any address of the mapping.
static void again(int at)
{
	uint64_t address = place_address(at) + below(2) * MIB;
	CUmemGenericAllocationHandle handle = 0;

	if (!program.memories[at].mapped || program.memories[at].mapping_busy)
		return;
	program.memories[at].mapping_busy = true;
	if (!vg_cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address)) {
		CHECK_EQUAL(handle, program.memories[at].handle);
		program.memories[at].handles++;
		done[8]++;
	}
	program.memories[at].mapping_busy = false;
}

static void make_context(void)
{
	CUcontext context;

	if (vg_cuCtxCreate_v2(&context, 0, 0))
		return;
	program.contexts[context_number(context)].there = true;
	done[9]++;
}

static void retain_primary(void)
{
	CUcontext context;

	if (vg_cuDevicePrimaryCtxRetain(&context, 0))
		return;
	program.contexts[0].there = true;
	program.retained++;
	done[10]++;
}

static CUresult end_primary(void)
{
	CUresult result = program.retained > 1 || below(2) ? vg_cuDevicePrimaryCtxReset_v2(0) :
							     vg_cuDevicePrimaryCtxRelease_v2(0);

	if (!result)
		program.retained = 0;
	return result;
}

// end_context ends a context that nobody uses, nor will from then on.
static void end_context(int context)
{
	CUresult result;

	if (!program.contexts[context].there || program.contexts[context].busy)
		return;
	program.contexts[context].there = false;
	result = context ? vg_cuCtxDestroy_v2(context_handle(context)) : end_primary();
	program.contexts[context].there = result != CUDA_SUCCESS;
	for (int i = 0; i < pieces && !result; i++)
		if (program.pieces[i].context == context)
			program.pieces[i].kind = NOTHING;
	done[11] += !result;
}

static void release_primary(void)
{
	if (program.retained == 1)
		end_context(0);
	else if (program.retained && !vg_cuDevicePrimaryCtxRelease_v2(0))
		program.retained--;
}

static void with_contexts(void)
{
	switch (below(8)) {
	case 0: make_context(); break;
	case 1: retain_primary(); break;
	case 2: release_primary(); break;
	case 3: end_context((int)below(contexts)); break;
	default: in_context(raise); break;
	}
}

static void anybody(void)
{
	int at = (int)below(places);

	if (below(8) == 0)
		atomic_store(&state->audited_ms[0], 0);
	switch (below(10)) {
	case 0: if (!locked()) with_contexts(); break;
	case 1: case 2: in_context(take_linear); break;
	case 3: in_context(take_array); break;
	case 4: create(at); break;
	case 5: release(at); break;
	case 6: map(at); break;
	case 7: unmap(at); break;
	case 8: again(at); break;
	default: in_context(give); break;
	}
}

// ---- the test

#define DRIVER(name, function) vg_real_functions[VG_SYM_##name] = (vg_function)(void (*)(void))(function)

static void begin(void)
{
	struct vg_limits_device device = test_device(1, UINT64_C(1) << 40);
	struct vg_error error;
	char dir[256];

	snprintf(dir, sizeof dir, "%s", test_dir());
	CHECK(test_pages_make(dir, &device, 1) == 0);
	state = vg_state_new();
	CHECK(vg_pages_open(&state->pages, dir, &error) == 0);
	CHECK(vg_slot_take(&state->pages, &error) == 0);
	state->devices[0] = 1;
	state->granule[0] = 2 * MIB;
	state->nvml = &management;
	state->nvml_pid = own_pid;
	atomic_store(&state->ready, 1);
	driver.current = -1;
}

// end has the program give everything back, as often as the driver refuses it.
static void end(void)
{
	while (physical()) {
		for (int i = 0; i < places; i++) {
			release(i);
			unmap(i);
		}
		for (int i = 0; i < contexts; i++)
			end_context(i);
	}
	CHECK_EQUAL(state->unseen[0], 0);
	CHECK_EQUAL(on_page(), 0);
}

int main(void)
{
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
	DRIVER(cuMemRetainAllocationHandle, driver_again);
	DRIVER(cuCtxCreate_v2, driver_context);
	DRIVER(cuCtxDestroy_v2, driver_context_destroy);
	DRIVER(cuDevicePrimaryCtxRetain, driver_retain);
	DRIVER(cuDevicePrimaryCtxRelease_v2, driver_let_go);
	DRIVER(cuDevicePrimaryCtxReset_v2, driver_reset);
	DRIVER(cuDevicePrimaryCtxGetState, driver_state);
	DRIVER(cuCtxGetLimit, driver_get_limit);
	DRIVER(cuCtxSetLimit, driver_set_limit);
	begin();
	for (int i = 0; i < rounds; i++)
		anybody();
	for (size_t i = 0; i < sizeof done / sizeof *done; i++)
		CHECK(done[i] > rounds / 1000);
	end();
	return 0;
}

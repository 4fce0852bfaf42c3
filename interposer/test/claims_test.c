// SPDX-License-Identifier: Apache-2.0

// This test checks that a process's charge is never less than its memory, at any moment of any
// call. Other threads run at that moment, and the agent may be measuring the process.

#include <string.h>

#include "base/number.h"
#include "check.h"
#include "fixture.h"
#include "memory/audit.h"
#include "model.h"
#include "process.h"

enum { rounds = 60000, most_depth = 3 };

static struct vg_state *state;

static uint64_t on_page(void)
{
	const struct vg_slot_device *own = vg_slot_device(&state->pages, (uint32_t)state->pages.slot, 0);

	return vg_load(&own->pending) + vg_load(&own->used);
}

static void anybody(void);

static bool quiet; // all other threads have ended

// others runs the steps of other threads. Each thread has a current context.
static void others(void)
{
	static int depth;
	int current = model_current;

	CHECK(on_page() >= model_held());
	if (depth == most_depth || quiet)
		return;
	depth++;
	for (uint64_t i = model_below(3); i > 0; i--)
		anybody();
	depth--;
	model_current = current;
	CHECK(on_page() >= model_held());
}

// ---- a program that follows the rules: no memory is freed twice, and no thread uses memory that another thread has freed

CUresult vg_cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
CUresult vg_cuMemFree_v2(CUdeviceptr address);
CUresult vg_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *shape);
CUresult vg_cuArrayDestroy(CUarray array);
CUresult vg_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
			const CUmemAllocationProp *properties, unsigned long long flags);
CUresult vg_cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult vg_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
CUresult vg_cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
					 unsigned long long flags);
CUresult vg_cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
		     CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult vg_cuMemUnmap(CUdeviceptr address, size_t bytes);
CUresult vg_cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
CUresult vg_cuCtxDestroy_v2(CUcontext context);
CUresult vg_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult vg_cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult vg_cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult vg_cuCtxSetLimit(int limit, size_t value);

enum { pieces = model_units + model_arrays };

enum piece_kind { NOTHING, LINEAR, ARRAY };

struct piece {
	enum piece_kind kind;
	uint64_t key;
	int context;
};

static struct {
	struct {
		bool there;
		unsigned busy; // calls in progress with the context
	} contexts[model_contexts];
	unsigned retained;
	bool resetting;
	unsigned primary_busy; // retains and releases in progress
	struct piece pieces[pieces];
	// Each allocation is mapped at a separate address, or not at all.
	struct {
		uint64_t bytes;
		CUmemGenericAllocationHandle handle;
		unsigned handles;
		bool mapped;
		bool handle_busy;
		bool mapping_busy;
		unsigned releases; // in progress
	} memories[model_places];
} program;

static unsigned done[14];

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

	if (vg_cuMemAlloc_v2(&address, (1 + model_below(12)) * model_unit - model_below(2) * 512))
		return;
	keep(LINEAR, address, context);
	done[0]++;
}

static void take_array(int context)
{
	CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1 + model_below(9), .Format = 1, .NumChannels = 1};
	CUarray array = NULL;

	if (vg_cuArray3DCreate_v2(&array, &shape))
		return;
	keep(ARRAY, (uintptr_t)array, context);
	done[1]++;
}

static void give(int context)
{
	int at = (int)model_below(pieces);
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
	done[3] += !vg_cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, (8 + model_below(50) * 2) * MIB);
}

static void in_context(void (*call)(int context))
{
	int context = (int)model_below(model_contexts);

	if (!program.contexts[context].there)
		return;
	model_current = context;
	program.contexts[context].busy++;
	call(context);
	program.contexts[context].busy--;
}

static void create(int at)
{
	const CUmemAllocationProp properties = {.type = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	uint64_t bytes = 2 * MIB * (1 + model_below(8));

	if (program.memories[at].bytes)
		return;
	program.memories[at].bytes = bytes;
	if (vg_cuMemCreate(&program.memories[at].handle, bytes, &properties, 0))
		program.memories[at].bytes = 0;
	else
		program.memories[at].handles = 1;
	done[4] += program.memories[at].handles;
}

// settle drops memory that has neither handles nor mappings.
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
	program.memories[at].mapped = !vg_cuMemMap(model_address(at), program.memories[at].bytes, 0,
						   program.memories[at].handle, 0);
	program.memories[at].handle_busy = program.memories[at].mapping_busy = false;
	done[6] += program.memories[at].mapped;
}

static void unmap(int at)
{
	if (!program.memories[at].mapped || program.memories[at].mapping_busy)
		return;
	program.memories[at].mapping_busy = true;
	program.memories[at].mapped = vg_cuMemUnmap(model_address(at), program.memories[at].bytes);
	program.memories[at].mapping_busy = false;
	done[7] += !program.memories[at].mapped;
	settle(at);
}

// again requests the handle by a random address of the mapping.
static void again(int at)
{
	uint64_t address = model_address(at) + model_below(2) * MIB;
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

static void export(int at)
{
	int descriptor;

	if (!program.memories[at].handles || program.memories[at].handle_busy)
		return;
	program.memories[at].handle_busy = true;
	done[12] += !vg_cuMemExportToShareableHandle(&descriptor, program.memories[at].handle, 1, 0);
	program.memories[at].handle_busy = false;
}

static void make_context(void)
{
	CUcontext context;

	if (vg_cuCtxCreate_v2(&context, 0, 0))
		return;
	program.contexts[model_context_number(context)].there = true;
	done[9]++;
}

static void retain_primary(void)
{
	CUcontext context;

	CUresult result;

	if (program.resetting)
		return;
	program.primary_busy++;
	result = vg_cuDevicePrimaryCtxRetain(&context, 0);
	program.primary_busy--;
	if (result)
		return;
	program.contexts[0].there = true;
	program.retained++;
	done[10]++;
}

// forget_pieces drops and returns the pieces of a context before the context ends, because other
// allocations may reuse the handles at once.
static struct piece *forget_pieces(int context)
{
	struct piece *were = malloc(sizeof program.pieces);

	CHECK(were);
	memcpy(were, program.pieces, sizeof program.pieces);
	for (int i = 0; i < pieces; i++) {
		if (program.pieces[i].context == context)
			program.pieces[i].kind = NOTHING;
		else
			were[i].kind = NOTHING;
	}
	return were;
}

// restore_pieces restores the pieces of a context that did not end.
static void restore_pieces(struct piece *were)
{
	for (int i = 0; i < pieces; i++)
		if (were[i].kind)
			keep(were[i].kind, were[i].key, were[i].context);
}

// release_primary releases the primary context. Other threads may retain the context at any moment.
static void release_primary(void)
{
	struct piece *were = NULL;
	CUresult result;

	if (!program.retained || program.resetting ||
	    (program.retained == 1 && program.contexts[0].busy))
		return;
	if (--program.retained == 0) {
		program.contexts[0].there = false;
		were = forget_pieces(0);
	}
	program.primary_busy++;
	result = vg_cuDevicePrimaryCtxRelease_v2(0);
	program.primary_busy--;
	if (result) {
		program.retained++;
		if (were)
			restore_pieces(were);
	} else {
		done[11]++;
	}
	program.contexts[0].there = program.retained > 0;
	free(were);
}

static void reset_primary(void)
{
	struct piece *were;

	if (!program.retained || program.resetting || program.contexts[0].busy || program.primary_busy)
		return;
	program.resetting = true;
	program.contexts[0].there = false;
	were = forget_pieces(0);
	if (vg_cuDevicePrimaryCtxReset_v2(0))
		restore_pieces(were);
	else
		program.retained = 0;
	program.resetting = false;
	program.contexts[0].there = program.retained > 0;
	free(were);
}

// end_context ends a context that no thread uses or will use.
static void end_context(int context)
{
	struct piece *were;
	CUresult result;

	if (context == 0) {
		reset_primary();
		return;
	}
	if (!program.contexts[context].there || program.contexts[context].busy)
		return;
	program.contexts[context].there = false;
	were = forget_pieces(context);
	result = vg_cuCtxDestroy_v2(model_context(context));
	if (result) {
		restore_pieces(were);
		program.contexts[context].there = true;
	}
	free(were);
	done[11] += !result;
}

static void end_contexts(void)
{
	for (int i = 0; i < model_contexts; i++)
		end_context(i);
}

static void with_contexts(void)
{
	switch (model_below(9)) {
	case 8: end_contexts(); break;
	case 0: make_context(); break;
	case 1: retain_primary(); break;
	case 2: release_primary(); break;
	case 3: end_context((int)model_below(model_contexts)); break;
	default: in_context(raise); break;
	}
}

static void anybody(void)
{
	int at = (int)model_below(model_places);

	if (model_below(8) == 0)
		atomic_store(&state->asked_ms, 0);
	atomic_store(&state->silent_until_ms, 0);
	switch (model_below(12)) {
	case 0: with_contexts(); break;
	case 1: case 2: in_context(take_linear); break;
	case 3: in_context(take_array); break;
	case 4: create(at); break;
	case 5: release(at); break;
	case 6: map(at); break;
	case 7: unmap(at); break;
	case 8: again(at); break;
	case 9: export(at); break;
	case 10: done[13] += model_close((int)model_below(model_memories)); break;
	default: in_context(give); break;
	}
}

// ---- the test

static void begin(void)
{
	struct vg_limits_device device = test_device(1, UINT64_C(1) << 40);

	state = test_process(&device, 1);
}

// measured waits for an answer of the agent, and returns the charge.
static uint64_t measured(void)
{
	uint32_t answers = atomic_load(&state->corrections_made);

	while (answers == atomic_load(&state->corrections_made)) {
		atomic_store(&state->asked_ms, 0);
		atomic_store(&state->silent_until_ms, 0);
		vg_audit(state, 8 * VG_MIB);
	}
	return on_page();
}

// end makes the program free all memory, and retries when the driver refuses.
static void end(void)
{
	while (model_held()) {
		for (int i = 0; i < model_places; i++) {
			release(i);
			unmap(i);
		}
		for (int i = 0; i < model_memories; i++)
			model_close(i);
		end_contexts();
	}
	quiet = true;
	CHECK_EQUAL(state->corrections[0].unseen, 0);
}

// A context that replaces the last context has the same charge, whatever was exported before.
static void test_contexts_one_by_one(void)
{
	CUcontext context;

	for (int i = 0; i < 100; i++) {
		while (vg_cuDevicePrimaryCtxRetain(&context, 0))
			continue;
		CHECK(i == 0 || on_page() == model_held());
		CHECK_EQUAL(measured(), model_held());
		while (vg_cuDevicePrimaryCtxRelease_v2(0))
			continue;
	}
}

int main(void)
{
	model_install(others);
	begin();
	for (int i = 0; i < rounds; i++)
		anybody();
	for (size_t i = 0; i < sizeof done / sizeof *done; i++)
		CHECK(done[i] > rounds / 1000);
	end();
	test_contexts_one_by_one();
	return 0;
}

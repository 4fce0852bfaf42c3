// SPDX-License-Identifier: Apache-2.0

// This file handles memory that a process imports from another process or from another API. The
// import from a process uses an IPC handle or a pool. While imported memory is open in this
// process, the memory is charged like new memory. The exporter may free the memory or die, and may
// belong to another container. The interposer opens the import before the claim, because the memory
// already exists. If the limit has no room, the interposer closes the import again.

#include "base/number.h"
#include "driver/capture.h"
#include "driver/handle.h"
#include "memory/claim.h"
#include "memory/pointer.h"
#include "memory/pool_held.h"
#include "memory/pool_lifetime.h"
#include "memory/release.h"
#include "pages/limits.h"
#include "pages/usage.h"

static struct vg_entry *vg_import_again(struct vg_entry *entry, void *context)
{
	bool *known = context;

	*known = entry != NULL;
	if (entry)
		entry->count++;
	return entry;
}

// vg_import_look queries the size and the GPU of the opened allocation. The GPU need not be the
// current device.
static CUresult vg_import_look(CUdeviceptr address, CUdevice *device, uint64_t *bytes)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	CUresult result = VG_CALL(cuMemGetAddressRange_v2, &base, &size, address);

	*bytes = vg_round_up(size, 2 * VG_MIB);
	return result ? result :
			VG_CALL(cuPointerGetAttribute, device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
}

// vg_opened_import_charge charges an allocation that was opened at an address. The driver opens an
// allocation only once, and counts the calls.
static CUresult vg_opened_import_charge(struct vg_state *state, CUdeviceptr address)
{
	struct vg_claim claim;
	bool known = false;
	CUdevice device;
	uint64_t bytes;
	CUresult result;

	vg_table_with(&state->table, VG_IMPORT, address, vg_import_again, &known);
	if (known)
		return CUDA_SUCCESS;
	result = vg_import_look(address, &device, &bytes);
	if (!result)
		result = vg_claim_on(&claim, device, VG_WAY_IMPORT, bytes);
	if (result)
		return result;
	claim.entry->count = 1;
	vg_claim_settle(&claim, VG_IMPORT, address, vg_handle_context());
	return CUDA_SUCCESS;
}

static CUresult vg_import_opened(CUresult result, const CUdeviceptr *address)
{
	struct vg_state *state = vg_state_ready();

	if (result || !state)
		return result;
	result = vg_opened_import_charge(state, *address);
	if (result)
		VG_CALL(cuIpcCloseMemHandle, *address);
	return result;
}

VG_API(cuIpcOpenMemHandle, CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	return vg_import_opened(VG_CALL(cuIpcOpenMemHandle, address, handle, flags), address);
}

VG_API(cuIpcOpenMemHandle_v2, CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
	return vg_import_opened(VG_CALL(cuIpcOpenMemHandle_v2, address, handle, flags), address);
}

static struct vg_entry *vg_import_close(struct vg_entry *entry, void *context)
{
	struct vg_entry **last = context;

	if (entry && --entry->count > 0)
		return entry;
	*last = entry;
	return NULL;
}

VG_API(cuIpcCloseMemHandle, CUdeviceptr address)
{
	struct vg_state *state = vg_state_ready();
	struct vg_entry *last = NULL;
	bool known = false;
	CUresult result;

	if (!state)
		return VG_CALL(cuIpcCloseMemHandle, address);
	vg_calls_begin(state);
	vg_table_with(&state->table, VG_IMPORT, address, vg_import_close, &last);
	result = VG_CALL(cuIpcCloseMemHandle, address);
	if (last && !result) {
		vg_release(state, last);
	} else if (last) {
		last->count = 1;
		vg_table_put(&state->table, last);
	} else if (result) {
		vg_table_with(&state->table, VG_IMPORT, address, vg_import_again, &known);
	}
	vg_calls_end(state);
	return result;
}

// ---- pools of other processes

VG_API(cuMemPoolImportFromShareableHandle, CUmemoryPool *pool, void *handle, int type,
       unsigned long long flags)
{
	struct vg_state *state = vg_state_ready();
	CUresult result;

	if (!state)
		return CUDA_ERROR_NOT_INITIALIZED;
	result = VG_CALL(cuMemPoolImportFromShareableHandle, pool, handle, type, flags);
	if (!result)
		vg_pool_lifetime_opened(state, *pool);
	return result;
}

// vg_over_limit refuses an import while the charge exceeds the limit. The charge can exceed the
// limit because a pool may keep imported memory that was freed at once.
static CUresult vg_over_limit(struct vg_state *state)
{
	for (uint32_t i = 0; i < state->pages.device_count; i++) {
		CUdevice device = vg_state_ordinal(state, i);
		struct vg_claim claim;
		CUresult result;

		if (device < 0 || vg_usage_memory(&state->pages, i) <= vg_limits_memory(&state->pages, i))
			continue;
		result = vg_claim_on(&claim, device, VG_WAY_IMPORT, 2 * VG_MIB);
		if (result)
			return result;
		vg_claim_void(&claim);
	}
	return CUDA_SUCCESS;
}

// vg_pointer_undo frees an imported pointer for which the limit has no room, and charges memory
// that the pool keeps.
static void vg_pointer_undo(struct vg_state *state, CUdeviceptr address)
{
	int mode = vg_capture_relax();

	VG_CALL(cuMemFree_v2, address);
	vg_capture_unrelax(mode);
	vg_pool_held_refresh(state);
}

VG_API(cuMemPoolImportPointer, CUdeviceptr *address, CUmemoryPool pool, void *data)
{
	struct vg_state *state = vg_state_ready();
	CUresult result = state ? vg_over_limit(state) : CUDA_ERROR_NOT_INITIALIZED;

	if (result)
		return result;
	vg_calls_begin(state);
	result = VG_CALL(cuMemPoolImportPointer, address, pool, data);
	vg_calls_end(state);
	if (result)
		return result;
	result = vg_pointer_charge(state, pool, *address);
	if (result)
		vg_pointer_undo(state, *address);
	return result;
}

// ---- memory of another API

// vg_external is the used part of CUDA_EXTERNAL_MEMORY_HANDLE_DESC.
struct vg_external {
	int type;
	void *handle[2];
	unsigned long long size;
};

VG_API(cuImportExternalMemory, void **memory, const void *description)
{
	const struct vg_external *external = description;
	struct vg_claim claim;
	CUresult result;

	if (!external)
		return VG_CALL(cuImportExternalMemory, memory, description);
	result = vg_claim_current(&claim, VG_WAY_IMPORT, vg_round_up(external->size, 2 * VG_MIB));
	if (result)
		return result;
	result = VG_CALL(cuImportExternalMemory, memory, description);
	if (result)
		vg_claim_void(&claim);
	else
		vg_claim_settle(&claim, VG_IMPORT, vg_handle_key(*memory), vg_handle_context());
	return result;
}

VG_API(cuDestroyExternalMemory, void *memory)
{
	VG_FREE(VG_IMPORT, vg_handle_key(memory), VG_CALL(cuDestroyExternalMemory, memory));
}

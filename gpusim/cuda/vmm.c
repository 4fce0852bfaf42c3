// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements the virtual memory calls. References hold a handle's physical memory: the
 * program's reference, a reference for each mapping, and a reference for each binding. Multicast
 * objects and sparse arrays have bindings. The memory is freed with the last reference.
 */
#include "vmm.h"

#include <stdlib.h>
#include <unistd.h>

#define MEMORY_MAGIC 0x564d4d48U

/* export is an exported file descriptor and its watch. */
struct export {
	struct export *next;
	int watch;
};

struct mapping {
	struct mapping *next;
	CUdeviceptr address;
	uint64_t size;
	struct memory *memory;
};

/* The process lock guards this list. */
static struct memory *memories;
static struct mapping *mappings;

struct memory *sim_memory_find(CUmemGenericAllocationHandle handle)
{
	struct memory *memory;

	for (memory = memories; memory; memory = memory->next)
		if ((CUmemGenericAllocationHandle)(uintptr_t)memory == handle && memory->handles)
			return memory;
	return NULL;
}

/* has_open_exports drops closed descriptors, and reports whether any descriptor is open. */
static bool has_open_exports(struct memory *memory)
{
	struct export **link = &memory->exports;

	while (*link) {
		struct export *export = *link;

		if (sim_share_is_open(export->watch)) {
			link = &export->next;
			continue;
		}
		*link = export->next;
		close(export->watch);
		free(export);
	}
	return memory->exports != NULL;
}

void sim_memory_drop(struct memory *memory)
{
	struct memory **link;

	if (memory->handles || memory->mappings || memory->bindings || has_open_exports(memory))
		return;
	for (link = &memories; *link != memory; link = &(*link)->next)
		;
	*link = memory->next;
	if (memory->shared)
		sim_share_release(memory->shared);
	else if (memory->charged)
		sim_uncharge(memory->device, memory->charged);
	sim_share_drop(memory->share.id);
	if (memory->multicast)
		memory->end(memory->multicast);
	free(memory);
}

/* drop_closed frees memory whose only holders were descriptors that are now closed. */
static void drop_closed(void)
{
	struct memory *memory = memories;

	while (memory) {
		struct memory *next = memory->next;

		if (memory->exports)
			sim_memory_drop(memory);
		memory = next;
	}
}

void sim_memories_look(void)
{
	sim_lock();
	drop_closed();
	sim_unlock();
}

/* The caller of add holds the process lock. */
static struct memory *add(uint64_t size, struct sim_device *device)
{
	struct memory *memory = calloc(1, sizeof(*memory));

	if (!memory)
		return NULL;
	memory->magic = MEMORY_MAGIC;
	memory->size = size;
	memory->device = device;
	memory->next = memories;
	memories = memory;
	return memory;
}

struct memory *sim_memory_add(uint64_t size, const CUmemAllocationProp *prop, struct sim_device *device)
{
	struct memory *memory;

	sim_lock();
	memory = add(size, device);
	if (memory) {
		memory->handles = 1;
		memory->prop = *prop;
	}
	sim_unlock();
	return memory;
}

/* ---- physical memory; needs no context ---- */

static CUresult check_prop(const CUmemAllocationProp *prop, struct sim_device **device)
{
	CUresult err = prop ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	if (prop->type != 1 || prop->location.type < CU_MEM_LOCATION_TYPE_DEVICE ||
	    prop->location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
		return CUDA_ERROR_INVALID_VALUE;
	*device = NULL;
	if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		return sim_device(prop->location.id, device);
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, int option)
{
	struct sim_device *device;
	CUresult err = check_prop(prop, &device);

	if (err)
		return err;
	if (!out || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	*out = GRANULARITY;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size,
			    const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct sim_device *device;
	struct memory *memory;
	CUresult err = check_prop(prop, &device);

	if (err)
		return err;
	if (!out || size == 0 || size % GRANULARITY || flags)
		return CUDA_ERROR_INVALID_VALUE;
	sim_memories_look();
	if (device)
		err = size > sim_gpu(device)->memory_bytes ? CUDA_ERROR_OUT_OF_MEMORY :
							     sim_charge(device, size);
	if (err)
		return err;
	memory = sim_memory_add(size, prop, device);
	if (!memory) {
		if (device)
			sim_uncharge(device, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memory->charged = device ? size : 0;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct memory *memory;
	CUresult err = sim_ready();

	if (err)
		return err;
	sim_lock();
	memory = sim_memory_find(handle);
	if (memory) {
		memory->handles--;
		sim_memory_drop(memory);
	}
	drop_closed();
	sim_unlock();
	return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
						       CUmemGenericAllocationHandle handle)
{
	struct memory *memory;
	CUresult err = prop ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	sim_lock();
	memory = sim_memory_find(handle);
	if (memory)
		*prop = memory->prop;
	sim_unlock();
	return memory ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- addresses ---- */

CU_API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr fixed,
				    unsigned long long flags)
{
	struct sim_alloc *alloc;
	CUresult err = sim_ready();

	(void)fixed; /* only a preference */
	if (err)
		return err;
	if (!out || size == 0 || size % GRANULARITY || flags || (alignment & (alignment - 1)))
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	alloc = sim_alloc_new(ALLOC_RESERVED, size, alignment < GRANULARITY ? GRANULARITY : alignment);
	if (alloc) {
		alloc->device = &sim.devices[0];
		*out = alloc->address;
	}
	sim_unlock();
	return alloc ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool overlaps(CUdeviceptr address, uint64_t size)
{
	for (const struct mapping *m = mappings; m; m = m->next)
		if (address < m->address + m->size && m->address < address + size)
			return true;
	return false;
}

CU_API CUresult cuMemAddressFree(CUdeviceptr address, size_t size)
{
	struct sim_alloc *alloc;
	CUresult err = sim_ready();

	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_exact(address);
	if (!alloc || alloc->kind != ALLOC_RESERVED || alloc->size != size || overlaps(address, size))
		err = CUDA_ERROR_INVALID_VALUE;
	else
		sim_alloc_drop(alloc);
	sim_unlock();
	return err;
}

/* ---- mappings ---- */

/* is_mappable reports whether a mapping may have this size. Drivers do not document partial
 * mappings. */
static bool is_mappable(const struct memory *memory, uint64_t size)
{
	if (!sim.handle.state->driver.map_parts)
		return size == memory->size;
	return size <= memory->size && size % GRANULARITY == 0;
}

static CUresult map(CUdeviceptr address, uint64_t size, struct memory *memory)
{
	const struct sim_alloc *range = sim_alloc_find(address);
	struct mapping *mapping;

	if (!range || range->kind != ALLOC_RESERVED || !is_mappable(memory, size) ||
	    address + size > range->address + range->size)
		return CUDA_ERROR_INVALID_VALUE;
	if (overlaps(address, size))
		return CUDA_ERROR_ALREADY_MAPPED;
	mapping = calloc(1, sizeof(*mapping));
	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*mapping = (struct mapping){mappings, address, size, memory};
	mappings = mapping;
	memory->mappings++;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
			 CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct memory *memory;
	CUresult err = sim_ready();

	if (err)
		return err;
	if (offset || flags || size == 0 || address % GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	memory = sim_memory_find(handle);
	err = memory ? map(address, size, memory) : CUDA_ERROR_INVALID_VALUE;
	sim_unlock();
	return err;
}

struct memory *sim_memory_mapped(CUdeviceptr address, uint64_t size, uint64_t *offset)
{
	for (const struct mapping *m = mappings; m; m = m->next) {
		if (address < m->address || address - m->address > m->size || size > m->size - (address - m->address))
			continue;
		*offset = address - m->address;
		return m->memory;
	}
	return NULL;
}

static void unmap(struct mapping **link)
{
	struct mapping *mapping = *link;

	*link = mapping->next;
	mapping->memory->mappings--;
	sim_memory_drop(mapping->memory);
	free(mapping);
}

/* cuMemUnmap unmaps as many whole mappings as the range holds. */
CU_API CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
	uint64_t done = 0;
	CUresult err = sim_ready();

	if (err)
		return err;
	sim_lock();
	for (struct mapping **link = &mappings; *link;) {
		struct mapping *m = *link;

		if (m->address < address || m->address + m->size > address + size) {
			link = &m->next;
			continue;
		}
		done += m->size;
		unmap(link);
	}
	sim_unlock();
	return done ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *list,
			       size_t count)
{
	bool mapped;
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!list || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	mapped = overlaps(address, size);
	sim_unlock();
	return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
			       CUdeviceptr address)
{
	bool mapped;
	CUresult err = flags && location ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	sim_lock();
	mapped = overlaps(address, 1);
	sim_unlock();
	if (mapped)
		*flags = 3;
	return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CU_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;
	CUresult err = out ? sim_ready() : CUDA_ERROR_INVALID_VALUE;
	const struct mapping *m;

	if (err)
		return err;
	sim_lock();
	for (m = mappings; m && (at < m->address || at >= m->address + m->size); m = m->next)
		;
	if (m) {
		m->memory->handles++;
		*out = (CUmemGenericAllocationHandle)(uintptr_t)m->memory;
	}
	sim_unlock();
	return m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- between processes ---- */

/* describe returns the description of this process's memory for an importer. */
static struct sim_share describe(struct memory *memory, CUmemGenericAllocationHandle handle)
{
	struct sim_share share = sim_share_make(memory->device, handle, memory->size);

	if (!memory->shared)
		memory->shared = sim_share_file(memory->device, memory->charged);
	share.id = memory->shared;
	return share;
}

static void watch_export(struct memory *memory, int fd)
{
	struct export *export = calloc(1, sizeof(*export));

	if (!export)
		return;
	export->watch = sim_share_watch(fd);
	if (export->watch < 0) {
		free(export);
		return;
	}
	export->next = memory->exports;
	memory->exports = export;
}

CU_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
					     unsigned long long flags)
{
	struct sim_share share = {0};
	struct memory *memory;
	CUresult err = out && !flags ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (!err && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		err = CUDA_ERROR_NOT_SUPPORTED;
	if (err)
		return err;
	sim_lock();
	memory = sim_memory_find(handle);
	if (!memory || !memory->device || !(memory->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		err = CUDA_ERROR_INVALID_VALUE;
	else if (memory->share.magic) /* imported memory remains the exporter's */
		share = memory->share;
	else
		share = describe(memory, handle);
	if (!err)
		err = sim_share_to_fd(&share, out);
	if (!err && share.id && memory->shared == share.id)
		watch_export(memory, *(int *)out);
	sim_unlock();
	return err;
}

CU_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os_handle,
					       int type)
{
	CUmemAllocationProp prop = {.type = 1, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	struct sim_device *device;
	struct sim_share share;
	struct memory *memory;
	CUresult err = out ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (!err && type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		err = CUDA_ERROR_NOT_SUPPORTED;
	if (!err)
		err = sim_share_from_fd((int)(intptr_t)os_handle, SHARE_MAGIC, &share);
	if (!err)
		err = sim_share_open(&share, &device);
	if (!err)
		err = sim_share_take(&share);
	if (err)
		return err;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = (int)(device - sim.devices);
	memory = sim_memory_add(share.size, &prop, device);
	if (!memory) {
		sim_share_drop(share.id);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	memory->share = share;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
	return CUDA_SUCCESS;
}

/* ---- dma-buf ---- */

/* behind returns the memory behind a linear allocation. The allocation has one reference to this
 * memory, which has no handle. Pieces of a chunk have no separate memory. */
static struct memory *behind(CUdeviceptr address, uint64_t size)
{
	struct sim_alloc *alloc = sim_alloc_find(address);

	if (!alloc || alloc->kind != ALLOC_LINEAR || size > alloc->address + alloc->size - address)
		return NULL;
	if (alloc->memory || alloc->chunk || alloc->shared)
		return alloc->memory;
	alloc->memory = add(alloc->charged, alloc->device);
	if (!alloc->memory)
		return NULL;
	alloc->memory->mappings = 1;
	alloc->memory->charged = alloc->charged;
	alloc->charged = 0;
	return alloc->memory;
}

void sim_memory_unmapped(struct memory *memory)
{
	memory->mappings--;
	sim_memory_drop(memory);
}

/* cuMemGetHandleForAddressRange returns a descriptor that holds the memory. */
CU_API CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr address, size_t size, int type,
					      unsigned long long flags)
{
	const struct sim_share none = {0};
	struct memory *memory;
	uint64_t offset;
	CUresult err = out && size && flags <= 1 ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (!err && type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)
		err = CUDA_ERROR_NOT_SUPPORTED;
	if (err)
		return err;
	sim_lock();
	memory = sim_memory_mapped(address, size, &offset);
	if (!memory)
		memory = behind(address, size);
	err = memory ? sim_share_to_fd(&none, out) : CUDA_ERROR_INVALID_VALUE;
	if (!err)
		watch_export(memory, *(int *)out);
	sim_unlock();
	return err;
}

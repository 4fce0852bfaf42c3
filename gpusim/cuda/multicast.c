// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements multicast objects. The program adds the announced number of devices, and
 * then binds memory of each device. The object holds bound memory until the program unbinds the
 * memory or the object ends. An object itself takes no memory, and the simulator cannot share an
 * object with another process.
 */
#include "vmm.h"

#include <stdlib.h>

struct multicast {
	int wanted; /* devices */
	unsigned added; /* a bit for each device */
	struct binding *bindings;
};

struct binding {
	struct binding *next;
	struct sim_device *device;
	uint64_t at, size;
	struct memory *memory;
};

struct multicast_prop {
	unsigned devices;
	size_t size;
	unsigned long long handle_types, flags;
};

static CUresult check_prop(const struct multicast_prop *prop)
{
	CUresult err = prop ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	if (prop->devices == 0 || prop->devices > (unsigned)sim.device_count || prop->flags)
		return CUDA_ERROR_INVALID_VALUE;
	return prop->handle_types & ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_ERROR_NOT_SUPPORTED :
									      CUDA_SUCCESS;
}

CU_API CUresult cuMulticastGetGranularity(size_t *out, const struct multicast_prop *prop, int option)
{
	CUresult err = check_prop(prop);

	if (err)
		return err;
	if (!out || option < 0 || option > 1)
		return CUDA_ERROR_INVALID_VALUE;
	*out = GRANULARITY;
	return CUDA_SUCCESS;
}

static void unbind(struct binding **link)
{
	struct binding *binding = *link;

	*link = binding->next;
	binding->memory->bindings--;
	sim_memory_drop(binding->memory);
	free(binding);
}

/* end_multicast releases the memory bound to the object, and the object. */
static void end_multicast(struct multicast *multicast)
{
	while (multicast->bindings)
		unbind(&multicast->bindings);
	free(multicast);
}

CU_API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *out, const struct multicast_prop *prop)
{
	const CUmemAllocationProp none = {0};
	struct multicast *multicast;
	struct memory *memory;
	CUresult err = check_prop(prop);

	if (err)
		return err;
	if (!out || prop->size == 0 || prop->size % GRANULARITY)
		return CUDA_ERROR_INVALID_VALUE;
	multicast = calloc(1, sizeof(*multicast));
	memory = multicast ? sim_memory_add(prop->size, &none, NULL) : NULL;
	if (!memory) {
		free(multicast);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	multicast->wanted = (int)prop->devices;
	memory->multicast = multicast;
	memory->end = end_multicast;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)memory;
	return CUDA_SUCCESS;
}

/* The caller holds the process lock. */

static struct multicast *find(CUmemGenericAllocationHandle handle)
{
	const struct memory *group = sim_memory_find(handle);

	return group ? group->multicast : NULL;
}

static bool is_complete(const struct multicast *multicast)
{
	return __builtin_popcount(multicast->added) == multicast->wanted;
}

static unsigned bit_of(const struct sim_device *device)
{
	return 1u << (device - sim.devices);
}

CU_API CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle handle, CUdevice ordinal)
{
	struct multicast *multicast;
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (!err && sim_gpu(device)->cc_major < 9)
		err = CUDA_ERROR_NOT_SUPPORTED;
	if (err)
		return err;
	sim_lock();
	multicast = find(handle);
	if (!multicast || is_complete(multicast) || multicast->added & bit_of(device))
		err = CUDA_ERROR_INVALID_VALUE;
	else
		multicast->added |= bit_of(device);
	sim_unlock();
	return err;
}

static bool is_bound(const struct multicast *multicast, const struct sim_device *device, uint64_t at,
		     uint64_t size)
{
	for (const struct binding *b = multicast->bindings; b; b = b->next)
		if (b->device == device && at < b->at + b->size && b->at < at + size)
			return true;
	return false;
}

static bool is_within(uint64_t at, uint64_t size, uint64_t whole)
{
	return size && at % GRANULARITY == 0 && size % GRANULARITY == 0 && at <= whole && size <= whole - at;
}

static CUresult bind(struct memory *group, uint64_t at, struct memory *memory, uint64_t offset, uint64_t size)
{
	struct multicast *multicast = group ? group->multicast : NULL;
	struct binding *binding;

	if (!multicast || !is_complete(multicast) || !memory || !memory->device ||
	    !(multicast->added & bit_of(memory->device)) || !is_within(at, size, group->size) ||
	    !is_within(offset, size, memory->size) || is_bound(multicast, memory->device, at, size))
		return CUDA_ERROR_INVALID_VALUE;
	binding = malloc(sizeof(*binding));
	if (!binding)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*binding = (struct binding){multicast->bindings, memory->device, at, size, memory};
	multicast->bindings = binding;
	memory->bindings++;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle handle, size_t at,
				   CUmemGenericAllocationHandle memory, size_t offset, size_t size,
				   unsigned long long flags)
{
	CUresult err = flags ? CUDA_ERROR_INVALID_VALUE : sim_ready();

	if (err)
		return err;
	sim_lock();
	err = bind(sim_memory_find(handle), at, sim_memory_find(memory), offset, size);
	sim_unlock();
	return err;
}

CU_API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle handle, size_t at, CUdeviceptr address,
				    size_t size, unsigned long long flags)
{
	CUresult err = flags ? CUDA_ERROR_INVALID_VALUE : sim_ready();
	struct memory *memory;
	uint64_t offset = 0;

	if (err)
		return err;
	sim_lock();
	memory = sim_memory_mapped(address, size, &offset);
	err = bind(sim_memory_find(handle), at, memory, offset, size);
	sim_unlock();
	return err;
}

/* cuMulticastUnbind unbinds exactly a bound range: the same offset and the same size. */
CU_API CUresult cuMulticastUnbind(CUmemGenericAllocationHandle handle, CUdevice ordinal, size_t at,
				  size_t size)
{
	struct sim_device *device;
	struct multicast *multicast;
	struct binding **link;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	err = CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	multicast = find(handle);
	for (link = multicast ? &multicast->bindings : NULL; link && *link; link = &(*link)->next) {
		if ((*link)->device != device || (*link)->at != at || (*link)->size != size)
			continue;
		err = CUDA_SUCCESS;
		unbind(link);
		break;
	}
	sim_unlock();
	return err;
}

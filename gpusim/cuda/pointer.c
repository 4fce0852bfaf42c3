// SPDX-License-Identifier: Apache-2.0
/* This file implements attributes of an address. */
#include "sim.h"

#include <string.h>

enum {
	ATTR_CONTEXT = 1,
	ATTR_MEMORY_TYPE = 2,
	ATTR_DEVICE_POINTER = 3,
	ATTR_HOST_POINTER = 4,
	ATTR_SYNC_MEMOPS = 6,
	ATTR_BUFFER_ID = 7,
	ATTR_IS_MANAGED = 8,
	ATTR_DEVICE_ORDINAL = 9,
	ATTR_IPC_CAPABLE = 10,
	ATTR_RANGE_START = 11,
	ATTR_RANGE_SIZE = 12,
	ATTR_MAPPED = 13,
	ATTR_ALLOWED_HANDLES = 14,
	ATTR_RDMA_CAPABLE = 15,
	ATTR_ACCESS_FLAGS = 16,
	ATTR_MEMPOOL = 17,
	ATTR_END = 25,
};

union value {
	uint64_t wide;
	unsigned narrow;
	int number;
	bool flag;
	void *pointer;
};

/* size_of returns the size of the attribute's value. */
static size_t size_of(int attribute)
{
	switch (attribute) {
	case ATTR_MEMORY_TYPE:
	case ATTR_DEVICE_ORDINAL:
	case ATTR_ACCESS_FLAGS:
		return 4;
	case ATTR_SYNC_MEMOPS:
	case ATTR_IS_MANAGED:
	case ATTR_IPC_CAPABLE:
	case ATTR_MAPPED:
	case ATTR_RDMA_CAPABLE:
		return 1;
	default:
		return 8;
	}
}

static union value read_attribute(const struct sim_alloc *alloc, int attribute, CUdeviceptr address)
{
	bool host = alloc->kind == ALLOC_HOST;
	union value value = {0};

	switch (attribute) {
	case ATTR_CONTEXT:
		value.pointer = alloc->context;
		break;
	case ATTR_MEMORY_TYPE:
		value.narrow = host ? 1 : 2;
		break;
	case ATTR_DEVICE_POINTER:
		value.wide = address;
		break;
	case ATTR_HOST_POINTER:
		value.wide = host || alloc->kind == ALLOC_MANAGED ? address : 0;
		break;
	case ATTR_BUFFER_ID:
		value.wide = alloc->id;
		break;
	case ATTR_IS_MANAGED:
		value.flag = alloc->kind == ALLOC_MANAGED;
		break;
	case ATTR_DEVICE_ORDINAL:
		value.number = alloc->device ? (int)(alloc->device - sim.devices) : 0;
		break;
	case ATTR_IPC_CAPABLE:
		value.flag = alloc->kind == ALLOC_LINEAR;
		break;
	case ATTR_RANGE_START:
		value.wide = alloc->address;
		break;
	case ATTR_RANGE_SIZE:
		value.wide = alloc->size;
		break;
	case ATTR_MAPPED:
		value.flag = true;
		break;
	case ATTR_ACCESS_FLAGS:
		value.narrow = 3;
		break;
	case ATTR_MEMPOOL:
		value.pointer = alloc->pool;
		break;
	default:
		break;
	}
	return value;
}

/* get returns an attribute of an address. Unknown addresses are ordinary host memory, whose
 * attributes read as zero. */
static CUresult get(void *out, int attribute, CUdeviceptr address, bool strict)
{
	const struct sim_alloc *alloc;
	union value value = {0};

	if (!out || attribute < ATTR_CONTEXT || attribute >= ATTR_END)
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	alloc = sim_alloc_find(address);
	if (alloc)
		value = read_attribute(alloc, attribute, address);
	else if (attribute == ATTR_DEVICE_ORDINAL)
		value.number = -2;
	sim_unlock();
	if (!alloc && strict)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(out, &value, size_of(attribute));
	return CUDA_SUCCESS;
}

CU_API CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address)
{
	CUresult err = sim_ready();

	return err ? err : get(out, attribute, address, true);
}

CU_API CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **out, CUdeviceptr address)
{
	CUresult err = attributes && out ? sim_ready() : CUDA_ERROR_INVALID_VALUE;

	for (unsigned i = 0; i < count && !err; i++)
		err = get(out[i], attributes[i], address, false);
	return err;
}

CU_API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
	struct sim_alloc *alloc;
	CUresult err = sim_ready();

	if (err)
		return err;
	sim_lock();
	alloc = sim_alloc_find(address);
	sim_unlock();
	return value && alloc && attribute == ATTR_SYNC_MEMOPS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// SPDX-License-Identifier: Apache-2.0
/* This header covers physical memory. Multicast objects use physical memory and have handles of the
 * same kind. */
#ifndef GPUSIM_VMM_H
#define GPUSIM_VMM_H

#include "share.h"

#define GRANULARITY (UINT64_C(2) << 20)

struct multicast;

struct memory {
	struct memory *next;
	uint32_t magic;
	unsigned handles, mappings;
	unsigned bindings; /* to multicast objects and sparse arrays */
	uint64_t size;
	uint64_t charged; /* 0: on the host, or imported */
	struct sim_device *device;
	CUmemAllocationProp prop;
	struct sim_share share;
	uint64_t shared; /* id of memory that was exported, see share.h */
	struct export *exports;
	struct multicast *multicast; /* the handle's object, if the handle is not a handle of memory */
	void (*end)(struct multicast *multicast); /* the object's destructor, called when handle and mappings are gone */
};

/* sim_memory_add creates a handle, or returns NULL. */
struct memory *sim_memory_add(uint64_t size, const CUmemAllocationProp *prop, struct sim_device *device);

/* The caller of the functions below holds the process lock. */
struct memory *sim_memory_find(CUmemGenericAllocationHandle handle);
/* sim_memory_mapped returns the memory mapped over a whole range, and the range's offset in the
 * memory. sim_memory_mapped returns NULL if no memory is mapped over the range. */
struct memory *sim_memory_mapped(CUdeviceptr address, uint64_t size, uint64_t *offset);
/* sim_memory_unmapped drops the reference of linear memory to the memory behind it. */
void sim_memory_unmapped(struct memory *memory);
/* sim_memory_drop frees the memory if no reference holds the memory. */
void sim_memory_drop(struct memory *memory);
#endif

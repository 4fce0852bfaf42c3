// SPDX-License-Identifier: Apache-2.0
/* Physical memory as multicast objects see it, which have handles as it does. */
#ifndef GPUSIM_VMM_H
#define GPUSIM_VMM_H

#include "share.h"

#define GRANULARITY (UINT64_C(2) << 20)

struct multicast;

struct memory {
	struct memory *next;
	uint32_t magic;
	unsigned handles, mappings;
	unsigned bindings; /* to multicast objects */
	uint64_t size;
	uint64_t charged; /* 0: on the host, or imported */
	struct sim_device *device;
	CUmemAllocationProp prop;
	struct sim_share share;
	uint64_t shared; /* id of memory that was exported, see share.h */
	struct export *exports;
	struct multicast *multicast; /* what the handle is of, if not of memory */
};

/* Makes a handle, or returns NULL. */
struct memory *sim_memory_add(uint64_t size, const CUmemAllocationProp *prop, struct sim_device *device);

/* These are called under the process lock. */
struct memory *sim_memory_find(CUmemGenericAllocationHandle handle);
/* What is mapped over a whole range, and where in it the range begins; NULL: nothing. */
struct memory *sim_memory_mapped(CUdeviceptr address, uint64_t size, uint64_t *offset);
/* Frees it, unless something holds it. */
void sim_memory_drop(struct memory *memory);
/* Its handle and mappings have gone: it lets go of what is bound to it, and of itself. */
void sim_multicast_end(struct multicast *multicast);

#endif

// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_ARRAY_H
#define GPUSIM_ARRAY_H

#include "sim.h"

/* sim_array is an array, a level of a mipmapped array, or a mipmapped array itself. */
struct sim_array {
	uint32_t magic;
	bool mipmapped;
	bool level; /* belongs to a mipmapped array */
	struct sim_context *context;
	CUDA_ARRAY3D_DESCRIPTOR shape;
	size_t element; /* bytes */
	CUdeviceptr address; /* address of the first byte; content is stored row by row */
	unsigned level_count;
	struct sim_array *levels;
};

/* sim_format_bytes returns the bytes of one channel of an element, or 0 for an unknown format. */
size_t sim_format_bytes(unsigned format);

CUresult sim_array_of(CUarray handle, struct sim_array **array);

#endif

// SPDX-License-Identifier: Apache-2.0
/* This header covers mappings of memory into sparse arrays. Callers hold the process lock. */
#ifndef GPUSIM_SPARSE_H
#define GPUSIM_SPARSE_H

#include "vmm.h"

/* sim_tile_map maps memory to a place of the array at this address, and replaces the place's mapping. */
CUresult sim_tile_map(CUdeviceptr array, const CUarrayMapInfo *place);
void sim_tile_undo(CUdeviceptr array, const CUarrayMapInfo *place);
/* sim_tiles_end undoes all mappings into the array at this address. */
void sim_tiles_end(CUdeviceptr array);
#endif

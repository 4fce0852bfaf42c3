// SPDX-License-Identifier: Apache-2.0
/* This file keeps the mappings of memory into sparse arrays. A mapping holds its memory. */
#include "sparse.h"

#include <stdlib.h>
#include <string.h>

struct tile {
	struct tile *next;
	CUdeviceptr array; /* the array's address */
	CUarrayMapInfo place;
	struct memory *memory;
};

/* The process lock guards this list. */
static struct tile *tiles;

static void drop(struct tile **link)
{
	struct tile *tile = *link;

	*link = tile->next;
	tile->memory->bindings--;
	sim_memory_drop(tile->memory);
	free(tile);
}

void sim_tiles_end(CUdeviceptr array)
{
	struct tile **link = &tiles;

	while (*link) {
		if ((*link)->array == array)
			drop(link);
		else
			link = &(*link)->next;
	}
}

static bool is_at(const struct tile *tile, CUdeviceptr array, const CUarrayMapInfo *place)
{
	return tile->array == array && tile->place.subresourceType == place->subresourceType &&
	       memcmp(&tile->place.subresource, &place->subresource, sizeof(place->subresource)) == 0;
}

void sim_tile_undo(CUdeviceptr array, const CUarrayMapInfo *place)
{
	for (struct tile **link = &tiles; *link; link = &(*link)->next) {
		if (!is_at(*link, array, place))
			continue;
		drop(link);
		return;
	}
}

CUresult sim_tile_map(CUdeviceptr array, const CUarrayMapInfo *place)
{
	struct memory *memory = sim_memory_find(place->memHandle.memHandle);
	struct tile *tile;

	if (!memory || place->offset >= memory->size)
		return CUDA_ERROR_INVALID_VALUE;
	tile = malloc(sizeof(*tile));
	if (!tile)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memory->bindings++;
	sim_tile_undo(array, place);
	*tile = (struct tile){tiles, array, *place, memory};
	tiles = tile;
	return CUDA_SUCCESS;
}

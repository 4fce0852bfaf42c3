// SPDX-License-Identifier: Apache-2.0
/*
 * This file maps memory into sparse arrays, and into arrays with deferred mapping. The program
 * replaces or undoes a mapping, or destroys the array. A mapping takes effect during the call. The
 * simulator does not check places against the shape of the array.
 */
#include "array.h"
#include "sparse.h"

static CUresult apply(const CUarrayMapInfo *place)
{
	struct sim_array *array;
	CUresult err = sim_array_of(place->resource.array, &array);

	if (err)
		return err;
	if (!(array->shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)))
		return CUDA_ERROR_INVALID_VALUE;
	sim_lock();
	if (place->memOperationType == CU_MEM_OPERATION_TYPE_MAP)
		err = sim_tile_map(array->address, place);
	else
		sim_tile_undo(array->address, place);
	sim_unlock();
	return err;
}

static CUresult apply_all(const CUarrayMapInfo *list, unsigned count)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (!err && !list)
		err = CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < count && !err; i++)
		err = apply(&list[i]);
	return err;
}

CU_PTSZ(cuMemMapArrayAsync, (CUarrayMapInfo *list, unsigned count, CUstream stream),
	((void)stream, apply_all(list, count)))

// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements calls that drivers later than 580 added: copies with attributes, host
 * functions with a wait mode, graph nodes with a context. The file also implements the calls of the
 * fictitious driver `unknown`.
 */
#include "sim.h"

#define LATER_CALLS(name, params) \
	CUresult name params; \
	CUresult name##_ptsz params;

LATER_CALLS(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream))
LATER_CALLS(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *p, CUstream stream))
LATER_CALLS(cuLaunchHostFunc, (CUstream stream, CUhostFn fn, void *data))
CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
			   const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params);
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size);

/* The location of memory is a hint, and sources are read in the stream's order. */
CU_PTSZ(cuMemcpyWithAttributesAsync,
	(CUdeviceptr to, CUdeviceptr from, size_t size, void *attributes, CUstream stream),
	((void)attributes,
	 ptds ? cuMemcpyAsync_ptsz(to, from, size, stream) : cuMemcpyAsync(to, from, size, stream)))

enum { OPERAND_POINTER = 1, OPERAND_ARRAY = 2, TYPE_ARRAY = 3, TYPE_UNIFIED = 4 };

/* operand is one side of a copy: rows and layers in elements. */
struct operand {
	int type;
	union {
		struct {
			CUdeviceptr ptr;
			size_t row_length, layer_height;
			int location_type, location_id;
		} pointer;
		struct {
			CUarray array;
			size_t x, y, z;
		} array;
	};
};

struct copy_3d {
	struct operand from, to;
	size_t width, height, depth;
	int access_order;
	unsigned flags;
};

static void set_source(CUDA_MEMCPY3D *p, const struct operand *from)
{
	if (from->type == OPERAND_ARRAY) {
		p->srcMemoryType = TYPE_ARRAY;
		p->srcArray = from->array.array;
		p->srcXInBytes = from->array.x;
		p->srcY = from->array.y;
		p->srcZ = from->array.z;
		return;
	}
	p->srcMemoryType = TYPE_UNIFIED;
	p->srcDevice = from->pointer.ptr;
	p->srcPitch = from->pointer.row_length;
	p->srcHeight = from->pointer.layer_height;
}

static void set_destination(CUDA_MEMCPY3D *p, const struct operand *to)
{
	if (to->type == OPERAND_ARRAY) {
		p->dstMemoryType = TYPE_ARRAY;
		p->dstArray = to->array.array;
		p->dstXInBytes = to->array.x;
		p->dstY = to->array.y;
		p->dstZ = to->array.z;
		return;
	}
	p->dstMemoryType = TYPE_UNIFIED;
	p->dstDevice = to->pointer.ptr;
	p->dstPitch = to->pointer.row_length;
	p->dstHeight = to->pointer.layer_height;
}

static bool is_operand(const struct operand *operand)
{
	return operand->type == OPERAND_POINTER || operand->type == OPERAND_ARRAY;
}

static CUresult copy_3d(const struct copy_3d *copy, unsigned long long flags, CUstream stream, bool ptds)
{
	CUDA_MEMCPY3D p = {0};

	if (!copy || flags || !is_operand(&copy->from) || !is_operand(&copy->to))
		return CUDA_ERROR_INVALID_VALUE;
	set_source(&p, &copy->from);
	set_destination(&p, &copy->to);
	p.WidthInBytes = copy->width;
	p.Height = copy->height ? copy->height : 1;
	p.Depth = copy->depth ? copy->depth : 1;
	return ptds ? cuMemcpy3DAsync_v2_ptsz(&p, stream) : cuMemcpy3DAsync_v2(&p, stream);
}

CU_PTSZ(cuMemcpy3DWithAttributesAsync,
	(struct copy_3d *copy, unsigned long long flags, CUstream stream),
	copy_3d(copy, flags, stream, ptds))

/* The wait mode of the driver has no cost in the simulator. */
CU_PTSZ(cuLaunchHostFunc_v2, (CUstream stream, CUhostFn fn, void *data, unsigned mode),
	((void)mode, ptds ? cuLaunchHostFunc_ptsz(stream, fn, data) : cuLaunchHostFunc(stream, fn, data)))

CU_API CUresult cuGraphAddNode_v3(CUgraphNode *out, CUgraph graph, const CUgraphNode *deps,
				  const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params)
{
	return cuGraphAddNode_v2(out, graph, deps, data, count, params);
}

/* ---- calls of the fictitious driver */

CU_API CUresult cuFrobnicate(int *value);
CU_API CUresult cuFrobnicate(int *value)
{
	*value = 42;
	return CUDA_SUCCESS;
}

CU_API CUresult cuMemAllocFrob(CUdeviceptr *address, size_t size);
CU_API CUresult cuMemAllocFrob(CUdeviceptr *address, size_t size)
{
	return cuMemAlloc_v2(address, size);
}

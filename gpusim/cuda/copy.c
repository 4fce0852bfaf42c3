// SPDX-License-Identifier: Apache-2.0
/*
 * This file simulates the effect and the duration of copies and memsets. Content moves during the
 * call, while the stream takes the time. No simulated kernel reads or writes memory. Therefore only
 * a host function could detect the difference.
 */
#include "array.h"
#include "graph.h"

#include <string.h>

enum { TYPE_HOST = 1, TYPE_DEVICE = 2, TYPE_ARRAY = 3, TYPE_UNIFIED = 4 };

/* side is one side of a copy, from any kind of parameter. */
struct side {
	bool on_device;
	unsigned char *content; /* address of the first byte, NULL: no content is stored */
	size_t pitch, slice;
};

static bool is_device(CUdeviceptr address)
{
	const struct sim_alloc *alloc = sim_alloc_find(address);

	return alloc && alloc->kind != ALLOC_HOST;
}

/*
 * linear_address returns the address of a linear side, and sets on_device if the address belongs to a
 * device. The declared type does not matter, because addresses are unified. NVIDIA does not define
 * the copy if the type is wrong.
 */
static CUdeviceptr linear_address(int type, const void *host, CUdeviceptr device, bool *on_device)
{
	CUdeviceptr address = type == TYPE_HOST ? (CUdeviceptr)(uintptr_t)host : device;

	*on_device = is_device(address);
	return address;
}

/* linear_side fills in the side at an address. span is the number of bytes from the first byte to
 * the last byte that the copy touches. */
static struct side linear_side(int type, const void *host, CUdeviceptr device, size_t offset,
			       size_t pitch, size_t slice, size_t span)
{
	struct side side = {.pitch = pitch, .slice = slice};
	CUdeviceptr address = linear_address(type, host, device, &side.on_device);

	if (side.on_device)
		side.content = sim_content(address + offset, span);
	else if (type != TYPE_DEVICE)
		side.content = (unsigned char *)(uintptr_t)(address + offset);
	return side;
}

static struct side array_side(const struct sim_array *array, size_t offset, size_t span)
{
	struct side side = {.on_device = true};

	side.pitch = array->shape.Width * array->element;
	side.slice = side.pitch * (array->shape.Height ? array->shape.Height : 1);
	side.content = sim_content(array->address + offset, span);
	return side;
}

static size_t or_one(size_t value)
{
	return value ? value : 1;
}

static size_t reach(const CUDA_MEMCPY3D *p, size_t pitch, size_t slice)
{
	return (or_one(p->Depth) - 1) * slice + (or_one(p->Height) - 1) * pitch + p->WidthInBytes;
}

static struct side source(const CUDA_MEMCPY3D *p)
{
	size_t pitch = p->srcPitch, slice = p->srcPitch * p->srcHeight;

	if (p->srcMemoryType == TYPE_ARRAY) {
		pitch = p->srcArray->shape.Width * p->srcArray->element;
		slice = pitch * or_one(p->srcArray->shape.Height);
		return array_side(p->srcArray, p->srcZ * slice + p->srcY * pitch + p->srcXInBytes,
				  reach(p, pitch, slice));
	}
	return linear_side(p->srcMemoryType, p->srcHost, p->srcDevice,
			   p->srcZ * slice + p->srcY * pitch + p->srcXInBytes, pitch, slice,
			   reach(p, pitch, slice));
}

static struct side destination(const CUDA_MEMCPY3D *p)
{
	size_t pitch = p->dstPitch, slice = p->dstPitch * p->dstHeight;

	if (p->dstMemoryType == TYPE_ARRAY) {
		pitch = p->dstArray->shape.Width * p->dstArray->element;
		slice = pitch * or_one(p->dstArray->shape.Height);
		return array_side(p->dstArray, p->dstZ * slice + p->dstY * pitch + p->dstXInBytes,
				  reach(p, pitch, slice));
	}
	return linear_side(p->dstMemoryType, p->dstHost, p->dstDevice,
			   p->dstZ * slice + p->dstY * pitch + p->dstXInBytes, pitch, slice,
			   reach(p, pitch, slice));
}

static uint64_t duration(uint64_t bytes, uint64_t bytes_per_s)
{
	return (uint64_t)((double)bytes * 1e9 / (double)bytes_per_s);
}

static uint64_t copy_bytes(const CUDA_MEMCPY3D *p)
{
	return (uint64_t)p->WidthInBytes * or_one(p->Height) * or_one(p->Depth);
}

struct gs_work sim_copy_work(const struct sim_device *device, const CUDA_MEMCPY3D *p)
{
	struct gs_work work = {.kind = GS_ITEM_MARK, .demand_ppm = GS_DEMAND_ALL};
	bool from = true, to = true;

	sim_lock();
	if (p->srcMemoryType != TYPE_ARRAY)
		linear_address(p->srcMemoryType, p->srcHost, p->srcDevice, &from);
	if (p->dstMemoryType != TYPE_ARRAY)
		linear_address(p->dstMemoryType, p->dstHost, p->dstDevice, &to);
	sim_unlock();
	if (from && to) {
		work.kind = GS_ITEM_COMPUTE;
		work.duration_ns = duration(copy_bytes(p), sim_gpu(device)->device_bandwidth);
	} else if (from || to) {
		work.kind = GS_ITEM_COPY;
		work.duration_ns = duration(copy_bytes(p), sim_gpu(device)->host_bandwidth);
	}
	return work;
}

void sim_copy_content(const CUDA_MEMCPY3D *p)
{
	struct side from, to;

	if (p->WidthInBytes == 0)
		return;
	sim_lock();
	from = source(p);
	to = destination(p);
	for (size_t z = 0; from.content && to.content && z < or_one(p->Depth); z++)
		for (size_t y = 0; y < or_one(p->Height); y++)
			memmove(to.content + z * to.slice + y * to.pitch,
				from.content + z * from.slice + y * from.pitch, p->WidthInBytes);
	sim_unlock();
}

struct gs_work sim_memset_work(const struct sim_device *device, const CUDA_MEMSET_NODE_PARAMS *p)
{
	uint64_t bytes = (uint64_t)p->width * p->elementSize * or_one(p->height);
	bool near;

	sim_lock();
	near = is_device(p->dst);
	sim_unlock();
	return (struct gs_work){
		.kind = GS_ITEM_COMPUTE,
		.demand_ppm = GS_DEMAND_ALL,
		.duration_ns = duration(bytes, near ? sim_gpu(device)->device_bandwidth :
						      sim_gpu(device)->host_bandwidth),
	};
}

static void fill_row(unsigned char *row, size_t size, const CUDA_MEMSET_NODE_PARAMS *p)
{
	if (p->elementSize == 1) {
		memset(row, (int)p->value, size);
		return;
	}
	for (size_t x = 0; x < size; x += p->elementSize)
		memcpy(row + x, &p->value, p->elementSize);
}

void sim_memset_content(const CUDA_MEMSET_NODE_PARAMS *p)
{
	size_t row = p->width * p->elementSize;
	unsigned char *content;

	if (row == 0)
		return;
	sim_lock();
	content = sim_content(p->dst, (or_one(p->height) - 1) * p->pitch + row);
	for (size_t y = 0; content && y < or_one(p->height); y++)
		fill_row(content + y * p->pitch, row, p);
	sim_unlock();
}

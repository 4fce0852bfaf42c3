// SPDX-License-Identifier: Apache-2.0

#include "allocation.h"

#include "base/number.h"
#include "capture.h"

// vg_units is a reserved address range. The interposer maps a handle in the range to find the
// handle's size.
struct vg_units {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	uint64_t unit; // every size is a multiple of `unit`
	uint64_t count;
};

// vg_units_map reports whether the driver maps `count` units of the handle. vg_units_map unmaps the
// units again.
static bool vg_units_map(const struct vg_units *units, uint64_t count)
{
	size_t bytes = (size_t)(count * units->unit);

	if (VG_CALL(cuMemMap, units->address, bytes, 0, units->handle, 0))
		return false;
	VG_CALL(cuMemUnmap, units->address, bytes);
	return true;
}

// vg_units_whole returns the number of units of a handle that the driver maps only as a whole.
// vg_units_whole tries every size in ascending order, because shared memory is usually small.
static uint64_t vg_units_whole(const struct vg_units *units)
{
	uint64_t count = 2;

	while (count < units->count && !vg_units_map(units, count))
		count++;
	return count;
}

// vg_units_part returns the number of units of a handle that the driver also maps in part.
// vg_units_part bisects.
static uint64_t vg_units_part(const struct vg_units *units)
{
	uint64_t mapped = 1;
	uint64_t beyond = units->count;

	while (beyond - mapped > 1) {
		uint64_t middle = mapped + (beyond - mapped) / 2;

		if (vg_units_map(units, middle))
			mapped = middle;
		else
			beyond = middle;
	}
	return beyond == units->count ? beyond : mapped;
}

uint64_t vg_allocation_bytes(CUmemGenericAllocationHandle handle, const CUmemAllocationProp *properties,
			     uint64_t most)
{
	struct vg_units units = {.handle = handle};
	size_t unit = 0;
	int mode = vg_capture_relax();

	if (VG_CALL(cuMemGetAllocationGranularity, &unit, properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) || !unit)
		unit = 2 * VG_MIB;
	units.unit = unit;
	units.count = most / unit + 2; // more than `most`
	if (VG_CALL(cuMemAddressReserve, &units.address, (size_t)(units.count * unit), 0, 0, 0) == CUDA_SUCCESS) {
		uint64_t span = units.count;

		units.count = vg_units_map(&units, 1) ? vg_units_part(&units) : vg_units_whole(&units);
		VG_CALL(cuMemAddressFree, units.address, (size_t)(span * unit));
	}
	vg_capture_unrelax(mode);
	return units.count * units.unit;
}

// SPDX-License-Identifier: Apache-2.0

// This file handles lists of processes. A container sees only its own processes that have a slot on
// the usage page, with the pids of its own namespace. The driver's list has the processes of all
// containers, and often the host's pids.

#include "nvml.h"
#include "pages/slot.h"

// vg_no_instance is the id of an instance for a process on a GPU that is no MIG device.
static const unsigned vg_no_instance = UINT32_MAX;

// Version 1 of the structure has no instances. Versions 2 and 3 are the same structure.
typedef struct {
	unsigned pid;
	unsigned long long used;
} nvmlProcessInfo_v1_t;

typedef struct {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance;
	unsigned compute_instance;
} nvmlProcessInfo_t;

typedef struct {
	unsigned pid;
	unsigned long long used;
	unsigned gpu_instance;
	unsigned compute_instance;
	unsigned long long protected;
} nvmlProcessDetail_v1_t;

typedef struct {
	unsigned version; // size of the structure, and the version in the top byte
	unsigned mode;    // 0: compute, 1: graphics, 2: MPS
	unsigned count;
	nvmlProcessDetail_v1_t *entries;
} nvmlProcessDetailList_v1_t;

_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "process, version 1");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "process, versions 2 and 3");
_Static_assert(sizeof(nvmlProcessDetail_v1_t) == 32, "process in detail");
_Static_assert(sizeof(nvmlProcessDetailList_v1_t) == 24, "list in detail");

static const unsigned vg_detail_version = (unsigned)sizeof(nvmlProcessDetailList_v1_t) | 1u << 24;

typedef int (*vg_processes_fn)(void *device, unsigned *count, void *entries);
typedef int (*vg_instance_fn)(void *device, unsigned *id);

// vg_listing is the program's list, which vg_list fills.
struct vg_listing {
	void *entries;
	unsigned room;
	unsigned found;
	unsigned gpu_instance, compute_instance; // of the device
	void (*put)(const struct vg_listing *listing, unsigned pid, uint64_t used);
};

static void vg_put_v1(const struct vg_listing *listing, unsigned pid, uint64_t used)
{
	((nvmlProcessInfo_v1_t *)listing->entries)[listing->found] =
		(nvmlProcessInfo_v1_t){.pid = pid, .used = used};
}

static void vg_put(const struct vg_listing *listing, unsigned pid, uint64_t used)
{
	((nvmlProcessInfo_t *)listing->entries)[listing->found] = (nvmlProcessInfo_t){
		.pid = pid, .used = used, .gpu_instance = listing->gpu_instance,
		.compute_instance = listing->compute_instance,
	};
}

static void vg_put_detail(const struct vg_listing *listing, unsigned pid, uint64_t used)
{
	((nvmlProcessDetail_v1_t *)listing->entries)[listing->found] = (nvmlProcessDetail_v1_t){
		.pid = pid, .used = used, .gpu_instance = listing->gpu_instance,
		.compute_instance = listing->compute_instance,
	};
}

// vg_instance returns the id of a MIG device's instance, or vg_no_instance for a GPU.
static unsigned vg_instance(uint32_t symbol, void *device)
{
	vg_function real = vg_real_lookup(symbol);
	unsigned id = vg_no_instance;

	if (!real || ((vg_instance_fn)(void (*)(void))real)(device, &id))
		return vg_no_instance;
	return id;
}

static void vg_list_own(const struct vg_pages *pages, uint32_t device, struct vg_listing *listing)
{
	uint32_t slots = vg_slots_in_use(pages);
	bool live[VG_MAX_SLOTS];

	vg_slots_live(pages, live);
	for (uint32_t i = 0; i < slots; i++) {
		uint64_t used = vg_load(&vg_slot_device(pages, i, device)->used);
		uint32_t pid = __atomic_load_n(&pages->usage->slots[i].pid, __ATOMIC_SEQ_CST);

		if (!live[i] || !used || !pid)
			continue;
		if (listing->found < listing->room)
			listing->put(listing, pid, used);
		listing->found++;
	}
}

// vg_ask_driver returns the driver's error for the call, without the driver's list.
static int vg_ask_driver(uint32_t symbol, void *device)
{
	unsigned none = 0;
	int result = ((vg_processes_fn)(void (*)(void))vg_real(symbol))(device, &none, NULL);

	return result == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : result;
}

static int vg_list(uint32_t symbol, void *device, unsigned *count, struct vg_listing *listing)
{
	const struct vg_pages *pages;
	int result;
	int index;

	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	result = vg_ask_driver(symbol, device);
	if (result)
		return result;
	pages = vg_nvml_pages();
	if (!pages)
		return NVML_ERROR_NO_PERMISSION;
	listing->room = listing->entries ? *count : 0;
	listing->gpu_instance = vg_instance(VG_SYM_nvmlDeviceGetGpuInstanceId, device);
	listing->compute_instance = vg_instance(VG_SYM_nvmlDeviceGetComputeInstanceId, device);
	index = vg_nvml_index(pages, device);
	if (index >= 0)
		vg_list_own(pages, (uint32_t)index, listing);
	*count = listing->found;
	return listing->found > listing->room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

// VG_LIST defines a function that lists compute processes.
#define VG_LIST(name, writer)                                                             \
	int vg_##name(void *device, unsigned *count, void *entries);                      \
	int vg_##name(void *device, unsigned *count, void *entries)                       \
	{                                                                                 \
		struct vg_listing listing = {.entries = entries, .put = writer};          \
                                                                                          \
		return vg_list(VG_SYM_##name, device, count, &listing);                   \
	}

VG_LIST(nvmlDeviceGetComputeRunningProcesses, vg_put_v1)
VG_LIST(nvmlDeviceGetComputeRunningProcesses_v2, vg_put)
VG_LIST(nvmlDeviceGetComputeRunningProcesses_v3, vg_put)

static int vg_list_nobody(uint32_t symbol, void *device, unsigned *count)
{
	int result = count ? vg_ask_driver(symbol, device) : NVML_ERROR_INVALID_ARGUMENT;

	if (!result)
		*count = 0;
	return result;
}

// VG_LIST_NOBODY defines a function that lists clients of graphics or of MPS. The list is empty,
// because the usage page does not mark clients of graphics or of MPS.
#define VG_LIST_NOBODY(name)                                                     \
	int vg_##name(void *device, unsigned *count, const void *entries);       \
	int vg_##name(void *device, unsigned *count, const void *entries)        \
	{                                                                        \
		(void)entries;                                                   \
		return vg_list_nobody(VG_SYM_##name, device, count);             \
	}

VG_LIST_NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
VG_LIST_NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
VG_LIST_NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
VG_LIST_NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
VG_LIST_NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
VG_LIST_NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)

int vg_nvmlDeviceGetRunningProcessDetailList(void *device, nvmlProcessDetailList_v1_t *list);
int vg_nvmlDeviceGetRunningProcessDetailList(void *device, nvmlProcessDetailList_v1_t *list)
{
	struct vg_listing listing = {.put = vg_put_detail};

	if (!list)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (list->version != vg_detail_version)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (list->mode)
		return vg_list_nobody(VG_SYM_nvmlDeviceGetComputeRunningProcesses_v3, device,
				      &list->count);
	listing.entries = list->entries;
	return vg_list(VG_SYM_nvmlDeviceGetComputeRunningProcesses_v3, device, &list->count, &listing);
}

// A container does not receive the driver's samples and accounting of single processes, because
// these data contain the host's pids.

int vg_nvmlDeviceGetProcessUtilization(void *device, void *samples, unsigned *count,
				       unsigned long long since);
int vg_nvmlDeviceGetProcessUtilization(void *device, void *samples, unsigned *count,
				       unsigned long long since)
{
	(void)samples;
	(void)since;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	(void)device;
	return NVML_ERROR_NOT_FOUND;
}

int vg_nvmlDeviceGetProcessesUtilizationInfo(void *device, void *list);
int vg_nvmlDeviceGetProcessesUtilizationInfo(void *device, void *list)
{
	(void)device;
	return list ? NVML_ERROR_NOT_FOUND : NVML_ERROR_INVALID_ARGUMENT;
}

int vg_nvmlDeviceGetAccountingPids(void *device, const unsigned *count, const unsigned *pids);
int vg_nvmlDeviceGetAccountingPids(void *device, const unsigned *count, const unsigned *pids)
{
	(void)device;
	(void)count;
	(void)pids;
	return NVML_ERROR_NOT_SUPPORTED;
}

int vg_nvmlDeviceGetAccountingStats(void *device, unsigned pid, const void *stats);
int vg_nvmlDeviceGetAccountingStats(void *device, unsigned pid, const void *stats)
{
	(void)device;
	(void)pid;
	(void)stats;
	return NVML_ERROR_NOT_SUPPORTED;
}

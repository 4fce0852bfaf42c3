// SPDX-License-Identifier: Apache-2.0
/* This file implements attributes of a device. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

CU_API CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = ordinal;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetCount(int *count)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sim.device_count;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!name || length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	(void)snprintf(name, (size_t)length, "%s", sim_gpu(device)->name);
	return CUDA_SUCCESS;
}

/* get_uuid returns the UUID of a device. For a MIG device, the first version of the call returns the
 * UUID of the card. */
static CUresult get_uuid(CUuuid *uuid, CUdevice ordinal, bool of_card)
{
	struct sim_device *device;
	const struct gs_gpu *gpu;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	gpu = of_card ? gs_card(sim.handle.state, device->gpu) : sim_gpu(device);
	memcpy(uuid->bytes, gpu->uuid, sizeof(uuid->bytes));
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	return get_uuid(uuid, device, true);
}

CU_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	return get_uuid(uuid, device, false);
}

/* ---- PCI ---- */

struct pci_address {
	unsigned domain, bus, device;
};

static bool parse_pci(const char *text, struct pci_address *pci)
{
	if (sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) == 3)
		return true;
	pci->domain = 0;
	return sscanf(text, "%x:%x", &pci->bus, &pci->device) == 2;
}

static struct pci_address pci_of(const struct sim_device *device)
{
	struct pci_address pci = {0, 0, 0};

	(void)parse_pci(sim_gpu(device)->pci_bus_id, &pci);
	return pci;
}

CU_API CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
	struct sim_device *device;
	struct pci_address pci;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!text || length <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	pci = pci_of(device);
	(void)snprintf(text, (size_t)length, "%04X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetByPCIBusId(CUdevice *out, const char *text)
{
	struct pci_address wanted;
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!out || !text || !parse_pci(text, &wanted))
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < sim.device_count; i++) {
		struct pci_address pci = pci_of(&sim.devices[i]);

		if (pci.domain != wanted.domain || pci.bus != wanted.bus || pci.device != wanted.device)
			continue;
		*out = i;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_DEVICE;
}

/* ---- attributes ---- */

/*
 * These are the attributes of a Hopper data-centre card. The other values come from the GPU.
 */
static const struct {
	int attribute, value;
} constants[] = {
	{1, 1024},         /* threads per block */
	{2, 1024}, {3, 1024}, {4, 64}, /* block dimensions */
	{5, 2147483647}, {6, 65535}, {7, 65535}, /* grid dimensions */
	{8, 49152},        /* shared memory per block */
	{9, 65536},        /* constant memory */
	{10, 32},          /* warp size */
	{11, 2147483647},  /* pitch */
	{12, 65536},       /* registers per block */
	{13, 1980000},     /* clock, kHz */
	{14, 512},         /* texture alignment */
	{15, 1},           /* copies beside kernels */
	{17, 0},           /* kernel time limit */
	{18, 0},           /* integrated */
	{19, 1},           /* can map host memory */
	{21, 131072}, {22, 131072}, {23, 65536}, {24, 16384}, {25, 16384}, {26, 16384},
	{30, 512},         /* surface alignment */
	{31, 1},           /* concurrent kernels */
	{32, 1},           /* ECC */
	{35, 0},           /* TCC driver */
	{36, 3201000},     /* memory clock, kHz */
	{37, 6144},        /* memory bus, bits */
	{38, 62914560},    /* L2, bytes */
	{39, THREADS_PER_SM},
	{40, 3},           /* copy engines */
	{41, 1},           /* unified addressing */
	{78, 1},           /* stream priorities */
	{79, 1}, {80, 1},  /* L1 caching */
	{81, 233472},      /* shared memory per SM */
	{82, 65536},       /* registers per SM */
	{83, 1},           /* managed memory */
	{84, 0}, {85, 0},  /* multi-GPU board */
	{86, 1},           /* host native atomics */
	{87, 2},           /* single to double ratio */
	{88, 1},           /* pageable access */
	{89, 1},           /* concurrent managed access */
	{90, 1},           /* compute preemption */
	{91, 1},           /* host pointers of registered memory */
	{95, 1},           /* cooperative launch */
	{96, 1},           /* on several devices */
	{97, 232448},      /* shared memory per block, opt-in */
	{98, 1},           /* flush remote writes */
	{99, 1},           /* host register */
	{100, 0}, {101, 0},
	{102, 1},          /* virtual memory management */
	{103, 1},          /* POSIX fd handles */
	{104, 0}, {105, 0},
	{106, 32},         /* blocks per SM */
	{107, 1},          /* generic compression */
	{108, 41943040},   /* persisting L2 */
	{109, 134213632},  /* access policy window */
	{110, 1},          /* RDMA with VMM */
	{111, 1024},       /* reserved shared memory per block */
	{112, 1},          /* sparse arrays */
	{113, 1},          /* read-only host register */
	{114, 1},          /* timeline semaphores */
	{115, 1},          /* memory pools */
	{116, 1},          /* RDMA */
	{117, 1},          /* flush options of RDMA */
	{118, 100},        /* ordering of RDMA */
	{119, 1},          /* pool handle types: fd */
	{120, 1},          /* cluster launch */
	{121, 1},          /* deferred-mapping arrays */
	{124, 0}, {128, 0}, {129, 0},
	{131, 0},
};

static const struct {
	int attribute;
	size_t offset;
} from_gpu[] = {
	{20, offsetof(struct gs_gpu, compute_mode)},
	{75, offsetof(struct gs_gpu, cc_major)},
	{76, offsetof(struct gs_gpu, cc_minor)},
};

static int pci_attribute(const struct sim_device *device, int attribute)
{
	struct pci_address pci = pci_of(device);

	return (int)(attribute == 33 ? pci.bus : attribute == 34 ? pci.device : pci.domain);
}

#define ATTRIBUTE_END 150

CU_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	if (err)
		return err;
	if (!value || attribute < 1 || attribute >= ATTRIBUTE_END)
		return CUDA_ERROR_INVALID_VALUE;
	*value = 0;
	for (size_t i = 0; i < sizeof(from_gpu) / sizeof(from_gpu[0]); i++)
		if (from_gpu[i].attribute == attribute)
			memcpy(value, (const char *)sim_gpu(device) + from_gpu[i].offset, sizeof(*value));
	if (attribute == 16)
		*value = (int)sim_mps_sms(sim_gpu(device));
	if (attribute == 132) /* multicast */
		*value = sim_gpu(device)->cc_major >= 9;
	if (attribute == 33 || attribute == 34 || attribute == 50)
		*value = pci_attribute(device, attribute);
	for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++)
		if (constants[i].attribute == attribute)
			*value = constants[i].value;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
	CUresult err = cuDeviceGetAttribute(major, 75, device);

	return err ? err : cuDeviceGetAttribute(minor, 76, device);
}

struct device_properties {
	int max_threads_per_block, max_threads_dim[3], max_grid_size[3];
	int shared_per_block, constant_memory, simd_width, pitch, registers_per_block, clock_rate;
	int texture_alignment;
};

CU_API CUresult cuDeviceGetProperties(struct device_properties *p, CUdevice device)
{
	CUresult err = p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (int i = 0; !err && i < 14; i++)
		err = cuDeviceGetAttribute((int *)p + i, i + 1, device);
	return err;
}

CU_API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, int format, unsigned channels,
						   CUdevice ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	(void)format, (void)channels;
	if (err)
		return err;
	if (!width)
		return CUDA_ERROR_INVALID_VALUE;
	*width = 1 << 28;
	return CUDA_SUCCESS;
}

CU_API CUresult cuDeviceGetExecAffinitySupport(int *supported, int type, CUdevice ordinal)
{
	struct sim_device *device;
	CUresult err = sim_device(ordinal, &device);

	(void)type;
	if (err)
		return err;
	if (!supported)
		return CUDA_ERROR_INVALID_VALUE;
	*supported = 0; /* neither parts of a GPU per context nor MPS parts are simulated */
	return CUDA_SUCCESS;
}

CU_API CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
	(void)target, (void)scope;
	return sim_ready();
}

// SPDX-License-Identifier: Apache-2.0
/* This file implements lookup and identification of devices. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
	PCI_DEVICE_ID = 0x233510de, /* an H200 by NVIDIA */
	PCI_SUBSYSTEM_ID = 0x18be10de,
	PCI_CLASS_DISPLAY = 3,
	PCI_SUBCLASS_3D = 2,
};

/* ---- from a number or name to a handle ---- */

NVML_FUNCTION(nvmlDeviceGetCount_v2, unsigned *count)
{
	nvmlReturn_t result = nv_enter();

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = nv_device_count();
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetCount, unsigned *count)
{
	return nvmlDeviceGetCount_v2(count);
}

/* hand_out returns a device's handle. hand_out fails if the device is lost or broken. */
static nvmlReturn_t hand_out(nvmlDevice_t found, nvmlDevice_t *device)
{
	nvmlReturn_t result = nv_enter_name(found);

	if (result != NVML_SUCCESS)
		return result;
	if (!__atomic_exchange_n(&found->opened, true, __ATOMIC_RELAXED))
		nv_cost(nv_state()->state->driver.nvml_handle_ns);
	*device = found;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetHandleByIndex_v2, unsigned index, nvmlDevice_t *device)
{
	nvmlReturn_t result = nv_enter();

	if (result != NVML_SUCCESS)
		return result;
	if (!device || index >= nv_device_count())
		return NVML_ERROR_INVALID_ARGUMENT;
	return hand_out(nv_device_at(index), device);
}

NVML_FUNCTION(nvmlDeviceGetHandleByIndex, unsigned index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

typedef bool (*match)(const struct gs_gpu *gpu, const void *wanted);

static nvmlReturn_t find(match matches, const void *wanted, nvmlDevice_t *device)
{
	nvmlReturn_t result = nv_enter();

	if (result != NVML_SUCCESS)
		return result;
	if (!wanted || !device)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (uint32_t i = 0; i < nv_device_count(); i++)
		if (matches(nv_gpu(nv_device_at(i)), wanted))
			return hand_out(nv_device_at(i), device);
	return NVML_ERROR_NOT_FOUND;
}

/* search finds a GPU by its UUID or serial number. NVML initialises other GPUs as it searches. */
static nvmlReturn_t search(match matches, const void *wanted, nvmlDevice_t *device)
{
	nvmlReturn_t result = nv_enter();

	if (result != NVML_SUCCESS)
		return result;
	for (uint32_t i = 0; i < nv_device_count(); i++)
		if (__atomic_load_n(&nv_card(nv_device_at(i))->faults.lost, __ATOMIC_RELAXED))
			return NVML_ERROR_GPU_IS_LOST;
	return find(matches, wanted, device);
}

/* find_mig finds a visible MIG device. find_mig does not change *device if there is none. */
static nvmlReturn_t find_mig(match matches, const void *wanted, nvmlDevice_t *device)
{
	const struct gs_state *state = nv_state()->state;

	for (uint32_t g = 0; g < state->gpu_count; g++) {
		nvmlDevice_t mig;

		if (state->gpus[g].mig.role != GS_MIG_DEVICE || !matches(&state->gpus[g], wanted))
			continue;
		mig = nv_handle(g);
		return mig ? hand_out(mig, device) : NVML_ERROR_NOT_FOUND;
	}
	return NVML_ERROR_NOT_FOUND;
}

/* find_any finds a GPU or a MIG device. Only UUIDs name both. */
static nvmlReturn_t find_any(match matches, const void *wanted, nvmlDevice_t *device)
{
	nvmlReturn_t result = search(matches, wanted, device);

	return result == NVML_ERROR_NOT_FOUND ? find_mig(matches, wanted, device) : result;
}

static bool has_uuid_text(const struct gs_gpu *gpu, const void *wanted)
{
	char text[GS_UUID_SIZE];

	gs_uuid_text(gpu, text);
	return strcasecmp(text, wanted) == 0;
}

static bool has_uuid_bytes(const struct gs_gpu *gpu, const void *wanted)
{
	return memcmp(gpu->uuid, wanted, sizeof(gpu->uuid)) == 0;
}

NVML_FUNCTION(nvmlDeviceGetHandleByUUID, const char *uuid, nvmlDevice_t *device)
{
	return find_any(has_uuid_text, uuid, device);
}

NVML_FUNCTION(nvmlDeviceGetHandleByUUIDV, const struct nvml_uuid *uuid, nvmlDevice_t *device)
{
	if (!uuid)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (uuid->version != NVML_VERSION(struct nvml_uuid, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (uuid->type == NVML_UUID_TYPE_ASCII)
		return find_any(has_uuid_text, uuid->text, device);
	if (uuid->type == NVML_UUID_TYPE_BINARY)
		return find_any(has_uuid_bytes, uuid->bytes, device);
	return NVML_ERROR_INVALID_ARGUMENT;
}

struct pci_address {
	unsigned domain, bus, device, function;
};

static bool parse_pci(const char *text, struct pci_address *address)
{
	char rest;

	memset(address, 0, sizeof(*address));
	if (sscanf(text, "%x:%x:%x.%x%c", &address->domain, &address->bus, &address->device,
		   &address->function, &rest) == 4)
		return true;
	address->domain = 0;
	return sscanf(text, "%x:%x.%x%c", &address->bus, &address->device, &address->function,
		      &rest) == 3;
}

static bool has_pci(const struct gs_gpu *gpu, const void *wanted)
{
	struct pci_address own, other;

	return parse_pci(gpu->pci_bus_id, &own) && parse_pci(wanted, &other) &&
	       memcmp(&own, &other, sizeof(own)) == 0;
}

NVML_FUNCTION(nvmlDeviceGetHandleByPciBusId_v2, const char *bus_id, nvmlDevice_t *device)
{
	return find(has_pci, bus_id, device);
}

NVML_FUNCTION(nvmlDeviceGetHandleByPciBusId, const char *bus_id, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

/* serial_text derives a serial number of 13 digits from the UUID's first bytes. */
static void serial_text(const struct gs_gpu *gpu, char text[16])
{
	unsigned number = 0;

	for (int i = 0; i < 4; i++)
		number = number << 8 | gpu->uuid[i];
	(void)snprintf(text, 16, "165%010u", number);
}

static bool has_serial(const struct gs_gpu *gpu, const void *wanted)
{
	char text[16];

	serial_text(gpu, text);
	return strcmp(text, wanted) == 0;
}

NVML_FUNCTION(nvmlDeviceGetHandleBySerial, const char *serial, nvmlDevice_t *device)
{
	return search(has_serial, serial, device);
}

/* ---- from a handle to numbers and names ---- */

NVML_FUNCTION(nvmlDeviceGetName, nvmlDevice_t device, char *name, unsigned length)
{
	nvmlReturn_t result = nv_enter_name(device);

	return result == NVML_SUCCESS ? nv_copy_text(name, length, nv_gpu(device)->name) : result;
}

NVML_FUNCTION(nvmlDeviceGetUUID, nvmlDevice_t device, char *uuid, unsigned length)
{
	nvmlReturn_t result = nv_enter_name(device);
	char text[GS_UUID_SIZE];

	if (result != NVML_SUCCESS)
		return result;
	gs_uuid_text(nv_gpu(device), text);
	return nv_copy_text(uuid, length, text);
}

NVML_FUNCTION(nvmlDeviceGetSerial, nvmlDevice_t device, char *serial, unsigned length)
{
	nvmlReturn_t result = nv_enter_gpu(device);
	char text[16];

	if (result != NVML_SUCCESS)
		return result;
	serial_text(nv_gpu(device), text);
	return nv_copy_text(serial, length, text);
}

NVML_FUNCTION(nvmlDeviceGetIndex, nvmlDevice_t device, unsigned *index)
{
	nvmlReturn_t result = nv_enter_device(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!index)
		return NVML_ERROR_INVALID_ARGUMENT;
	*index = device->index;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetMinorNumber, nvmlDevice_t device, unsigned *minor)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!minor)
		return NVML_ERROR_INVALID_ARGUMENT;
	*minor = nv_gpu(device)->minor;
	return NVML_SUCCESS;
}

/* long_bus_id writes the bus id with eight digits of domain, as in versions 3 and ext. */
static void long_bus_id(const struct pci_address *address, char text[32])
{
	(void)snprintf(text, 32, "%08X:%02X:%02X.%X", address->domain, address->bus,
		       address->device, address->function);
}

static void short_bus_id(const struct pci_address *address, char text[16])
{
	(void)snprintf(text, 16, "%04X:%02X:%02X.%X", address->domain & 0xffff,
		       address->bus & 0xff, address->device & 0xff, address->function & 0xf);
}

/* pci_of checks a PCI query and reads the device's address. */
static nvmlReturn_t pci_of(nvmlDevice_t device, const void *pci, struct pci_address *address)
{
	nvmlReturn_t result = nv_enter_gpu(device);

	if (result != NVML_SUCCESS)
		return result;
	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	return parse_pci(nv_gpu(device)->pci_bus_id, address) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

NVML_FUNCTION(nvmlDeviceGetPciInfo_v3, nvmlDevice_t device, struct nvml_pci_v3 *pci)
{
	struct pci_address address;
	nvmlReturn_t result = pci_of(device, pci, &address);

	if (result != NVML_SUCCESS)
		return result;
	*pci = (struct nvml_pci_v3){
		.domain = address.domain,
		.bus = address.bus,
		.device = address.device,
		.pci_device_id = PCI_DEVICE_ID,
		.pci_subsystem_id = PCI_SUBSYSTEM_ID,
	};
	short_bus_id(&address, pci->bus_id_legacy);
	long_bus_id(&address, pci->bus_id);
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetPciInfo_v2, nvmlDevice_t device, struct nvml_pci_v2 *pci)
{
	struct pci_address address;
	nvmlReturn_t result = pci_of(device, pci, &address);

	if (result != NVML_SUCCESS)
		return result;
	*pci = (struct nvml_pci_v2){
		.domain = address.domain,
		.bus = address.bus,
		.device = address.device,
		.pci_device_id = PCI_DEVICE_ID,
		.pci_subsystem_id = PCI_SUBSYSTEM_ID,
	};
	short_bus_id(&address, pci->bus_id);
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetPciInfo, nvmlDevice_t device, struct nvml_pci_v1 *pci)
{
	struct pci_address address;
	nvmlReturn_t result = pci_of(device, pci, &address);

	if (result != NVML_SUCCESS)
		return result;
	*pci = (struct nvml_pci_v1){
		.domain = address.domain,
		.bus = address.bus,
		.device = address.device,
		.pci_device_id = PCI_DEVICE_ID,
	};
	short_bus_id(&address, pci->bus_id);
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetPciInfoExt, nvmlDevice_t device, struct nvml_pci_ext *pci)
{
	struct pci_address address;
	nvmlReturn_t result = pci_of(device, pci, &address);

	if (result != NVML_SUCCESS)
		return result;
	if (pci->version != NVML_VERSION(struct nvml_pci_ext, 1))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	*pci = (struct nvml_pci_ext){
		.version = pci->version,
		.domain = address.domain,
		.bus = address.bus,
		.device = address.device,
		.pci_device_id = PCI_DEVICE_ID,
		.pci_subsystem_id = PCI_SUBSYSTEM_ID,
		.base_class = PCI_CLASS_DISPLAY,
		.sub_class = PCI_SUBCLASS_3D,
	};
	long_bus_id(&address, pci->bus_id);
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceGetTopologyCommonAncestor, nvmlDevice_t one, nvmlDevice_t other,
	      unsigned *level)
{
	nvmlReturn_t result = nv_enter_device(one);

	if (result == NVML_SUCCESS)
		result = nv_enter_device(other);
	if (result != NVML_SUCCESS)
		return result;
	if (!level)
		return NVML_ERROR_INVALID_ARGUMENT;
	*level = one == other ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_NODE;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlDeviceOnSameBoard, nvmlDevice_t one, nvmlDevice_t other, int *same)
{
	nvmlReturn_t result = nv_enter_device(one);

	if (result == NVML_SUCCESS)
		result = nv_enter_device(other);
	if (result != NVML_SUCCESS)
		return result;
	if (!same)
		return NVML_ERROR_INVALID_ARGUMENT;
	*same = one == other;
	return NVML_SUCCESS;
}

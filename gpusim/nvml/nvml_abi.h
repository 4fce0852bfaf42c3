// SPDX-License-Identifier: Apache-2.0
/*
 * This header declares the simulated part of NVML's binary interface: values and structures of
 * callers, and the declarations of the exported functions.
 */
#ifndef GPUSIM_NVML_ABI_H
#define GPUSIM_NVML_ABI_H

#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct nv_device *nvmlDevice_t;
typedef struct nv_event_set *nvmlEventSet_t;
typedef unsigned long long nvml_u64;

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_UNINITIALIZED = 1,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_DRIVER_NOT_LOADED = 9,
	NVML_ERROR_TIMEOUT = 10,
	NVML_ERROR_GPU_IS_LOST = 15,
	NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
	NVML_ERROR_MEMORY = 20,
	NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
	NVML_ERROR_UNKNOWN = 999,
};

enum {
	NVML_FEATURE_DISABLED = 0,
	NVML_FEATURE_ENABLED = 1,
	NVML_BRAND_NVIDIA = 14,
	NVML_BUS_TYPE_PCIE = 2,
	NVML_COMPUTEMODE_DEFAULT = 0,
	NVML_COMPUTEMODE_EXCLUSIVE_THREAD = 1, /* no longer supported */
	NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
	NVML_PSTATE_0 = 0,
	NVML_GPU_VIRTUALIZATION_MODE_NONE = 0,
	NVML_GPU_UTILIZATION_SAMPLES = 1,
	NVML_VALUE_TYPE_UNSIGNED_INT = 1,
	NVML_UUID_TYPE_ASCII = 1,
	NVML_UUID_TYPE_BINARY = 2,
	NVML_TOPOLOGY_INTERNAL = 0,
	NVML_TOPOLOGY_NODE = 40,
};

#define NVML_EVENT_XID_CRITICAL_ERROR UINT64_C(0x8)
/* NVML_NO_INSTANCE is an instance of a GPU that is not partitioned. */
#define NVML_NO_INSTANCE UINT32_MAX
/* NVML_VERSION is the version word of a structure: the size, and the version in the top byte. */
#define NVML_VERSION(type, version) ((unsigned)sizeof(type) | (unsigned)(version) << 24)

struct nvml_pci_v1 {
	char bus_id[16];
	unsigned domain, bus, device, pci_device_id;
};

struct nvml_pci_v2 {
	char bus_id[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	unsigned reserved[4];
};

struct nvml_pci_v3 {
	char bus_id_legacy[16];
	unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};

struct nvml_pci_ext {
	unsigned version, domain, bus, device, pci_device_id, pci_subsystem_id;
	unsigned base_class, sub_class;
	char bus_id[32];
};

struct nvml_memory {
	nvml_u64 total, free, used; /* bytes */
};

struct nvml_memory_v2 {
	unsigned version;
	nvml_u64 total, reserved, free, used; /* bytes */
};

struct nvml_bar1 {
	nvml_u64 total, free, used; /* bytes */
};

struct nvml_utilization {
	unsigned gpu, memory; /* percent */
};

struct nvml_process_v1 {
	unsigned pid;
	nvml_u64 used_bytes;
};

struct nvml_process_v2 {
	unsigned pid;
	nvml_u64 used_bytes;
	unsigned gpu_instance, compute_instance;
};

/* nvml_process_535 is version 3 of the structure in drivers 535.43 to 535.86. In all other drivers,
 * version 3 equals version 2. */
struct nvml_process_535 {
	struct nvml_process_v2 process;
	nvml_u64 protected_bytes;
};

struct nvml_encoder_session {
	unsigned id, pid, vgpu_instance;
	int codec; /* 0: H.264 */
	unsigned width, height;
	unsigned frames_per_s, latency_us; /* moving averages */
};

struct nvml_process_sample {
	unsigned pid;
	nvml_u64 timestamp; /* µs since 1970 */
	unsigned sm, memory, encoder, decoder; /* percent */
};

struct nvml_process_utilization {
	nvml_u64 timestamp; /* µs since 1970 */
	unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
};

struct nvml_processes_utilization {
	unsigned version, count;
	nvml_u64 last_seen; /* µs since 1970 */
	struct nvml_process_utilization *samples;
};

struct nvml_sample {
	nvml_u64 timestamp; /* µs since 1970 */
	union {
		unsigned value;
		nvml_u64 whole;
	};
};

struct nvml_event_v1 {
	nvmlDevice_t device;
	nvml_u64 type, data;
};

struct nvml_event {
	nvmlDevice_t device;
	nvml_u64 type, data;
	unsigned gpu_instance, compute_instance;
};

struct nvml_field {
	unsigned id, scope;
	long long timestamp, latency; /* µs */
	unsigned type;		      /* of the value */
	nvmlReturn_t result;
	union {
		unsigned value;
		nvml_u64 whole;
	};
};

struct nvml_attributes {
	unsigned sm_count, copy_engines, decoders, encoders, jpeg_engines, ofa_engines;
	unsigned gpu_slices, compute_slices;
	nvml_u64 memory_mib;
};

struct nvml_temperature {
	unsigned version, sensor;
	int celsius;
};

struct nvml_uuid {
	unsigned version, type;
	union {
		char text[41];
		unsigned char bytes[16];
	};
};

_Static_assert(sizeof(struct nvml_pci_v2) == 52, "PCI v2");
_Static_assert(sizeof(struct nvml_pci_v3) == 68, "PCI v3");
_Static_assert(sizeof(struct nvml_pci_ext) == 64, "PCI ext");
_Static_assert(sizeof(struct nvml_memory_v2) == 40, "memory v2");
_Static_assert(sizeof(struct nvml_process_v1) == 16, "process v1");
_Static_assert(sizeof(struct nvml_process_v2) == 24, "process v2");
_Static_assert(sizeof(struct nvml_process_535) == 32, "process 535");
_Static_assert(sizeof(struct nvml_encoder_session) == 32, "encoder session");
_Static_assert(sizeof(struct nvml_process_sample) == 32, "process sample");
_Static_assert(sizeof(struct nvml_process_utilization) == 40, "process utilization");
_Static_assert(sizeof(struct nvml_processes_utilization) == 24, "processes utilization");
_Static_assert(sizeof(struct nvml_sample) == 16, "sample");
_Static_assert(sizeof(struct nvml_event) == 32, "event");
_Static_assert(sizeof(struct nvml_field) == 40, "field");
_Static_assert(sizeof(struct nvml_attributes) == 40, "attributes");
_Static_assert(sizeof(struct nvml_temperature) == 12, "temperature");
_Static_assert(sizeof(struct nvml_uuid) == 52, "UUID");

/* NVML_FUNCTION begins the definition of an exported function. */
#define NVML_FUNCTION(name, ...)                                                      \
	__attribute__((visibility("default"))) nvmlReturn_t name(__VA_ARGS__);        \
	nvmlReturn_t name(__VA_ARGS__)

#endif

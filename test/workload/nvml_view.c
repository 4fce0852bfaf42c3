// SPDX-License-Identifier: Apache-2.0

#include "nvml_view.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "json.h"

// The declarations below are the part of NVML's binary interface that this program uses.
enum {
	WL_NVML_SUCCESS = 0,
	WL_NVML_FUNCTION_NOT_FOUND = 13,
	WL_NVML_MAX_PROCESSES = 1024,
};

typedef struct wl_nvml_device *wl_nvml_handle;

struct wl_nvml_memory {
	uint64_t total, free, used; // bytes
};

struct wl_nvml_memory_v2 {
	uint32_t version; // size of the structure, and the version in the top byte
	uint64_t total, reserved, free, used; // bytes
};

struct wl_nvml_process {
	uint32_t pid;
	uint64_t used_bytes;
	uint32_t gpu_instance, compute_instance;
};

struct wl_nvml_utilization {
	uint32_t gpu, memory; // percent
};

_Static_assert(sizeof(struct wl_nvml_memory_v2) == 40, "memory v2");
_Static_assert(sizeof(struct wl_nvml_process) == 24, "process info");

#define WL_NVML_FUNCTIONS(X)                                                  \
	X(init, nvmlInit_v2, void)                                            \
	X(shutdown, nvmlShutdown, void)                                       \
	X(driver_version, nvmlSystemGetDriverVersion, char *, unsigned)       \
	X(count, nvmlDeviceGetCount_v2, unsigned *)                           \
	X(handle, nvmlDeviceGetHandleByIndex_v2, unsigned, wl_nvml_handle *)  \
	X(uuid, nvmlDeviceGetUUID, wl_nvml_handle, char *, unsigned)          \
	X(name, nvmlDeviceGetName, wl_nvml_handle, char *, unsigned)          \
	X(memory, nvmlDeviceGetMemoryInfo, wl_nvml_handle,                    \
	  struct wl_nvml_memory *)                                            \
	X(memory_v2, nvmlDeviceGetMemoryInfo_v2, wl_nvml_handle,              \
	  struct wl_nvml_memory_v2 *)                                         \
	X(utilization, nvmlDeviceGetUtilizationRates, wl_nvml_handle,         \
	  struct wl_nvml_utilization *)                                       \
	X(processes, nvmlDeviceGetComputeRunningProcesses_v3, wl_nvml_handle, \
	  unsigned *, struct wl_nvml_process *)

struct wl_nvml {
#define WL_NVML_MEMBER(member, name, ...) int (*member)(__VA_ARGS__);
	WL_NVML_FUNCTIONS(WL_NVML_MEMBER)
#undef WL_NVML_MEMBER
};

#define WL_NVML_CALL(nvml, member, ...)                        \
	((nvml)->member ? (nvml)->member(__VA_ARGS__)          \
			: (int)WL_NVML_FUNCTION_NOT_FOUND)

static int wl_nvml_open(struct wl_nvml *nvml, const char *library)
{
	static const struct {
		size_t offset;
		const char *name;
	} entries[] = {
#define WL_NVML_ENTRY(member, name, ...) {offsetof(struct wl_nvml, member), #name},
		WL_NVML_FUNCTIONS(WL_NVML_ENTRY)
#undef WL_NVML_ENTRY
	};
	void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);

	if (!opened)
		return -1;
	for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
		void *found = dlsym(opened, entries[i].name);

		memcpy((char *)nvml + entries[i].offset, &found, sizeof found);
	}
	return 0;
}

static void wl_nvml_memory_view(const struct wl_nvml *nvml,
				wl_nvml_handle device)
{
	struct wl_nvml_memory memory = {0};
	struct wl_nvml_memory_v2 memory_v2 = {
		.version = (uint32_t)sizeof memory_v2 | 2u << 24,
	};
	int error = WL_NVML_CALL(nvml, memory, device, &memory);

	wl_json_open("memory");
	wl_json_integer("error_code", error);
	wl_json_bytes("total", memory.total);
	wl_json_bytes("used", memory.used);
	wl_json_bytes("free", memory.free);
	wl_json_close();
	error = WL_NVML_CALL(nvml, memory_v2, device, &memory_v2);
	wl_json_open("memory_v2");
	wl_json_integer("error_code", error);
	wl_json_bytes("total", memory_v2.total);
	wl_json_bytes("reserved", memory_v2.reserved);
	wl_json_bytes("used", memory_v2.used);
	wl_json_bytes("free", memory_v2.free);
	wl_json_close();
}

static void wl_nvml_process_view(const struct wl_nvml *nvml,
				 wl_nvml_handle device)
{
	static struct wl_nvml_process list[WL_NVML_MAX_PROCESSES];
	unsigned count = WL_NVML_MAX_PROCESSES;
	int error = WL_NVML_CALL(nvml, processes, device, &count, list);

	wl_json_integer("processes_error_code", error);
	wl_json_array("processes");
	for (unsigned i = 0; error == WL_NVML_SUCCESS && i < count; i++) {
		wl_json_open(NULL);
		wl_json_bytes("pid", list[i].pid);
		wl_json_bytes("used", list[i].used_bytes);
		wl_json_close();
	}
	wl_json_array_end();
}

static void wl_nvml_device_view(const struct wl_nvml *nvml, unsigned index)
{
	struct wl_nvml_utilization utilization = {0};
	wl_nvml_handle device;
	char uuid[96] = "";
	char name[96] = "";
	int error = WL_NVML_CALL(nvml, handle, index, &device);

	wl_json_open(NULL);
	wl_json_bytes("index", index);
	wl_json_integer("error_code", error);
	if (error == WL_NVML_SUCCESS) {
		WL_NVML_CALL(nvml, uuid, device, uuid, sizeof uuid);
		WL_NVML_CALL(nvml, name, device, name, sizeof name);
		WL_NVML_CALL(nvml, utilization, device, &utilization);
		wl_json_string("uuid", uuid);
		wl_json_string("name", name);
		wl_nvml_memory_view(nvml, device);
		wl_json_bytes("utilization_percent", utilization.gpu);
		wl_nvml_process_view(nvml, device);
	}
	wl_json_close();
}

static void wl_nvml_devices_view(const struct wl_nvml *nvml)
{
	char version[80] = "";
	unsigned count = 0;
	int error = WL_NVML_CALL(nvml, count, &count);

	WL_NVML_CALL(nvml, driver_version, version, sizeof version);
	wl_json_string("driver_version", version);
	wl_json_integer("count_error_code", error);
	wl_json_bytes("device_count", count);
	wl_json_array("devices");
	for (unsigned i = 0; error == WL_NVML_SUCCESS && i < count; i++)
		wl_nvml_device_view(nvml, i);
	wl_json_array_end();
}

void wl_nvml_view(const char *library)
{
	struct wl_nvml nvml;

	wl_json_open("nvml");
	if (wl_nvml_open(&nvml, library)) {
		wl_json_string("message", dlerror());
	} else {
		int error = WL_NVML_CALL(&nvml, init);

		wl_json_integer("init_error_code", error);
		if (error == WL_NVML_SUCCESS) {
			wl_nvml_devices_view(&nvml);
			WL_NVML_CALL(&nvml, shutdown);
		}
	}
	wl_json_close();
}

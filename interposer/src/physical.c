// SPDX-License-Identifier: Apache-2.0

#include "physical.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "finder.h"
#include "loader.h"

typedef int vg_nvml_result;

struct vg_nvml_process {
	unsigned pid;
	unsigned long long used_bytes;
	unsigned gpu_instance;
	unsigned compute_instance;
};

struct vg_nvml {
	vg_nvml_result (*init)(void);
	vg_nvml_result (*by_uuid)(const char *uuid, void **device);
	vg_nvml_result (*processes)(void *device, unsigned *count, struct vg_nvml_process *processes);
	bool usable;
};

static void vg_bind(const struct vg_loader *loader, void *library, const char *name, void *function)
{
	void *symbol = loader->symbol(library, name);

	memcpy(function, &symbol, sizeof symbol);
}

static void vg_nvml_open(struct vg_nvml *nvml)
{
	struct vg_loader loader;
	char path[PATH_MAX];
	void *library;

	if (vg_loader_get(&loader) || vg_find_library("libnvidia-ml.so.1", path))
		return;
	library = loader.open(path, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return;
	vg_bind(&loader, library, "nvmlInit_v2", &nvml->init);
	vg_bind(&loader, library, "nvmlDeviceGetHandleByUUID", &nvml->by_uuid);
	vg_bind(&loader, library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml->processes);
	nvml->usable = nvml->init && nvml->by_uuid && nvml->processes && nvml->init() == 0;
}

static const struct vg_nvml *vg_nvml_get(struct vg_state *state)
{
	struct vg_nvml *nvml = state->nvml;

	if (!nvml) {
		nvml = calloc(1, sizeof *nvml);
		if (!nvml)
			return NULL;
		vg_nvml_open(nvml);
		state->nvml = nvml;
	}
	return nvml->usable ? nvml : NULL;
}

static void vg_uuid_text(const uint8_t uuid[16], const char *kind, char text[48])
{
	char *at = text + sprintf(text, "%s", kind);

	for (int i = 0; i < 16; i++) {
		if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		at += sprintf(at, "%02x", uuid[i]);
	}
}

static void *vg_nvml_device(const struct vg_nvml *nvml, const uint8_t uuid[16])
{
	char text[48];
	void *device = NULL;

	vg_uuid_text(uuid, "GPU", text);
	if (nvml->by_uuid(text, &device) == 0)
		return device;
	vg_uuid_text(uuid, "MIG", text);
	return nvml->by_uuid(text, &device) == 0 ? device : NULL;
}

void vg_snapshot_take(struct vg_state *state, uint32_t device, struct vg_snapshot *snapshot)
{
	static const unsigned room = vg_max_processes;
	const struct vg_nvml *nvml = vg_nvml_get(state);
	void *handle = nvml ? vg_nvml_device(nvml, state->pages.uuids[device]) : NULL;
	struct vg_nvml_process *listed = handle ? calloc(room, sizeof *listed) : NULL;
	unsigned count = room;

	snapshot->device = device;
	snapshot->count = 0;
	snapshot->changes = atomic_load(&state->changes);
	snapshot->valid = listed && nvml->processes(handle, &count, listed) == 0 && count <= room;
	for (unsigned i = 0; snapshot->valid && i < count; i++) {
		snapshot->processes[i].pid = listed[i].pid;
		snapshot->processes[i].bytes = listed[i].used_bytes;
		snapshot->count++;
	}
	free(listed);
}

static uint64_t vg_bytes_of(const struct vg_snapshot *snapshot, unsigned pid, bool *found)
{
	for (unsigned i = 0; i < snapshot->count; i++) {
		if (snapshot->processes[i].pid != pid)
			continue;
		*found = true;
		return snapshot->processes[i].bytes;
	}
	return 0;
}

int vg_grown(const struct vg_snapshot *before, const struct vg_snapshot *after, uint64_t *bytes)
{
	bool listed = false;
	bool ignored;
	uint64_t now;

	if (!before->valid || !after->valid || before->changes != after->changes)
		return -1;
	now = vg_bytes_of(after, (unsigned)getpid(), &listed);
	if (listed) {
		uint64_t then = vg_bytes_of(before, (unsigned)getpid(), &ignored);

		*bytes = now > then ? now - then : 0;
		return 0;
	}
	*bytes = 0;
	for (unsigned i = 0; i < after->count; i++) {
		uint64_t then = vg_bytes_of(before, after->processes[i].pid, &ignored);

		now = after->processes[i].bytes;
		if (now > then && now - then > *bytes)
			*bytes = now - then;
	}
	return *bytes ? 0 : -1;
}

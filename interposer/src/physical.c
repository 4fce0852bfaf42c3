// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "physical.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "finder.h"
#include "loader.h"
#include "pool.h"

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
	static const char digits[] = "0123456789abcdef";
	char *at = stpcpy(text, kind);

	for (int i = 0; i < 16; i++) {
		if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		*at++ = digits[uuid[i] >> 4];
		*at++ = digits[uuid[i] & 15];
	}
	*at = '\0';
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
	uint64_t pools;

	// A call that is not seen here as under way was over before the look, or
	// begins later and is seen by the count.
	snapshot->calls = atomic_load(&state->calls);
	snapshot->count = 0;
	snapshot->valid = (uint32_t)snapshot->calls == 1 && listed &&
			  vg_pools_held(state, device, &snapshot->pools) &&
			  nvml->processes(handle, &count, listed) == 0 && count <= room &&
			  vg_pools_held(state, device, &pools) && pools == snapshot->pools &&
			  snapshot->calls == atomic_load(&state->calls);
	for (unsigned i = 0; snapshot->valid && i < count; i++) {
		snapshot->processes[i].pid = listed[i].pid;
		snapshot->processes[i].bytes = listed[i].used_bytes;
		snapshot->count++;
	}
	free(listed);
}

uint64_t vg_snapshot_bytes(const struct vg_snapshot *snapshot, unsigned pid)
{
	for (unsigned i = 0; i < snapshot->count; i++)
		if (snapshot->processes[i].pid == pid)
			return snapshot->processes[i].bytes;
	return 0;
}

static uint64_t vg_growth(const struct vg_snapshot *before, const struct vg_snapshot *after,
			  unsigned pid)
{
	uint64_t then = vg_snapshot_bytes(before, pid);
	uint64_t now = vg_snapshot_bytes(after, pid);

	return now > then ? now - then : 0;
}

// vg_only_grown is the one process that has grown by a context, 0 if there are
// several or none.
static unsigned vg_only_grown(const struct vg_snapshot *before, const struct vg_snapshot *after)
{
	unsigned found = 0;

	for (unsigned i = 0; i < after->count; i++) {
		unsigned pid = after->processes[i].pid;

		if (vg_growth(before, after, pid) < vg_least_context)
			continue;
		if (found)
			return 0;
		found = pid;
	}
	return found;
}

void vg_physical_recognise(struct vg_state *state, const struct vg_snapshot *before,
			   const struct vg_snapshot *after)
{
	unsigned own = (unsigned)getpid();

	if (!before->valid || !after->valid)
		return;
	if (vg_growth(before, after, own) >= vg_least_context)
		state->nvml_pid = own;
	else
		state->nvml_pid = vg_only_grown(before, after);
}

int vg_grown(const struct vg_state *state, const struct vg_snapshot *before,
	     const struct vg_snapshot *after, uint64_t *bytes)
{
	if (!state->nvml_pid || !before->valid || !after->valid || before->calls != after->calls ||
	    before->pools != after->pools)
		return -1;
	*bytes = vg_growth(before, after, state->nvml_pid);
	return 0;
}

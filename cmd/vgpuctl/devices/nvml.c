// SPDX-License-Identifier: Apache-2.0
//
// vgpu-nvml queries NVML for vgpuctl, which is linked statically and therefore cannot open NVML.
// vgpu-nvml answers each line of standard input with one line:
//
//	driver            "ok VERSION"
//	used UUID         "ok BYTES", of the whole GPU
//	processes UUID    "ok PID BYTES PID BYTES …"; BYTES is "?" if NVML does not report it
//
// If NVML fails, the answer is "error TEXT". vgpu-nvml exits at the end of its input.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// These declarations are the used part of NVML's ABI.
struct vn_process {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance;
	unsigned int compute_instance;
};
struct vn_memory {
	unsigned long long total, free, used;
};
enum { VN_INSUFFICIENT_SIZE = 7, VN_UNKNOWN_ERROR = 999, VN_MOST = 4096 };

struct vn_nvml {
	int (*init)(void);
	int (*version)(char *version, unsigned int length);
	int (*by_uuid)(const char *uuid, void **device);
	int (*memory)(void *device, struct vn_memory *memory);
	int (*processes)(void *device, unsigned int *count, struct vn_process *processes);
	const char *(*error)(int result);
};

static int vn_find(void *library, const char *name, void *to)
{
	void *found = dlsym(library, name);

	if (found == NULL) {
		fprintf(stderr, "libnvidia-ml.so.1 lacks %s\n", name);
		return -1;
	}
	memcpy(to, &found, sizeof found);
	return 0;
}

static int vn_open(struct vn_nvml *nvml)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	const char *list = "nvmlDeviceGetComputeRunningProcesses_v3";
	int result;

	if (library == NULL) {
		fprintf(stderr, "cannot open NVML: %s\n", dlerror());
		return -1;
	}
	// Drivers before 510 lack version 3 of the function. Versions 2 and 3 use the same structure.
	if (dlsym(library, list) == NULL)
		list = "nvmlDeviceGetComputeRunningProcesses_v2";
	if (vn_find(library, "nvmlInit_v2", &nvml->init) ||
	    vn_find(library, "nvmlSystemGetDriverVersion", &nvml->version) ||
	    vn_find(library, "nvmlDeviceGetHandleByUUID", &nvml->by_uuid) ||
	    vn_find(library, "nvmlDeviceGetMemoryInfo", &nvml->memory) ||
	    vn_find(library, list, &nvml->processes) ||
	    vn_find(library, "nvmlErrorString", &nvml->error))
		return -1;
	result = nvml->init();
	if (result != 0)
		fprintf(stderr, "nvmlInit: %s\n", nvml->error(result));
	return result;
}

static int vn_driver(const struct vn_nvml *nvml)
{
	char version[96] = "";
	int result = nvml->version(version, sizeof version);

	if (result == 0)
		printf("ok %s\n", version);
	return result;
}

static int vn_used(const struct vn_nvml *nvml, void *device)
{
	struct vn_memory memory;
	int result = nvml->memory(device, &memory);

	if (result == 0)
		printf("ok %llu\n", memory.used);
	return result;
}

static int vn_processes(const struct vn_nvml *nvml, void *device)
{
	static struct vn_process listed[VN_MOST];
	unsigned int count = VN_MOST;
	int result = nvml->processes(device, &count, listed);

	if (result != 0)
		return result;
	if (count > VN_MOST)
		return VN_INSUFFICIENT_SIZE;
	fputs("ok", stdout);
	for (unsigned int i = 0; i < count; i++)
		if (listed[i].used_bytes == ~0ull)
			printf(" %u ?", listed[i].pid);
		else
			printf(" %u %llu", listed[i].pid, listed[i].used_bytes);
	putchar('\n');
	return 0;
}

static int vn_answer(const struct vn_nvml *nvml, const char *question)
{
	char verb[16] = "", uuid[64] = "";
	void *device = NULL;
	int result;

	if (sscanf(question, "%15s %63s", verb, uuid) >= 1 && strcmp(verb, "driver") == 0)
		return vn_driver(nvml);
	result = nvml->by_uuid(uuid, &device);
	if (result != 0)
		return result;
	if (strcmp(verb, "used") == 0)
		return vn_used(nvml, device);
	if (strcmp(verb, "processes") == 0)
		return vn_processes(nvml, device);
	return VN_UNKNOWN_ERROR;
}

int main(void)
{
	struct vn_nvml nvml;
	char question[128];

	if (vn_open(&nvml))
		return EXIT_FAILURE;
	while (fgets(question, sizeof question, stdin) != NULL) {
		int result = vn_answer(&nvml, question);

		if (result != 0)
			printf("error %s\n", nvml.error(result));
		if (fflush(stdout) != 0)
			return EXIT_FAILURE;
	}
	return EXIT_SUCCESS;
}

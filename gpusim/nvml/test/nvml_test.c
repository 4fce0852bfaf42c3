// SPDX-License-Identifier: Apache-2.0
/*
 * This file tests the parts of the simulated NVML that Go's binding cannot test. These parts are
 * structures of old versions, buffers that are too small, NULLs, threads, and forks. The tests also
 * run under the sanitizers.
 *
 * Usage: nvml_test LIBRARY
 */
#include "../nvml_abi.h"
#include "state.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { GPUS = 2, THREADS = 4, ROUNDS = 200 };

static void *library;
static char dir[] = "/tmp/gpusim-nvml-XXXXXX";
static int failures;

#define CHECK(condition)                                                         \
	do {                                                                     \
		if (!(condition)) {                                              \
			fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #condition); \
			__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);      \
		}                                                                \
	} while (0)

/* CALL(name, types)(arguments) calls an exported function. */
#define CALL(name, ...) ((nvmlReturn_t(*)(__VA_ARGS__))find(#name))

static void *find(const char *name)
{
	void *symbol = dlsym(library, name);

	if (!symbol) {
		fprintf(stderr, "no %s: %s\n", name, dlerror());
		exit(1);
	}
	return symbol;
}

static nvmlDevice_t device_at(unsigned index)
{
	nvmlDevice_t device = NULL;

	CHECK(CALL(nvmlDeviceGetHandleByIndex_v2, unsigned, nvmlDevice_t *)(index, &device) ==
	      NVML_SUCCESS);
	return device;
}

static void test_before_init(void)
{
	unsigned count;
	int version = 0;

	CHECK(CALL(nvmlDeviceGetCount_v2, unsigned *)(&count) == NVML_ERROR_UNINITIALIZED);
	CHECK(CALL(nvmlDeviceGetName, nvmlDevice_t, char *, unsigned)(NULL, NULL, 0) ==
	      NVML_ERROR_UNINITIALIZED);
	CHECK(CALL(nvmlShutdown, void)() == NVML_ERROR_UNINITIALIZED);
	CHECK(CALL(nvmlSystemGetCudaDriverVersion_v2, int *)(&version) == NVML_SUCCESS);
	CHECK(version == 13000);
}

static void test_bad_arguments(void)
{
	nvmlDevice_t device = device_at(0);
	char text[8];
	nvmlReturn_t (*name)(nvmlDevice_t, char *, unsigned) =
		CALL(nvmlDeviceGetName, nvmlDevice_t, char *, unsigned);

	CHECK(name(device, text, sizeof(text)) == NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK(name(device, NULL, 96) == NVML_ERROR_INVALID_ARGUMENT);
	CHECK(name(NULL, text, sizeof(text)) == NVML_ERROR_INVALID_ARGUMENT);
	CHECK(name((nvmlDevice_t)text, text, sizeof(text)) == NVML_ERROR_INVALID_ARGUMENT);
	CHECK(CALL(nvmlDeviceGetCount_v2, unsigned *)(NULL) == NVML_ERROR_INVALID_ARGUMENT);
	CHECK(CALL(nvmlDeviceGetMemoryInfo, nvmlDevice_t, struct nvml_memory *)(device, NULL) ==
	      NVML_ERROR_INVALID_ARGUMENT);
	CHECK(CALL(nvmlEventSetWait_v2, nvmlEventSet_t, struct nvml_event *, unsigned)(
		      NULL, NULL, 0) == NVML_ERROR_INVALID_ARGUMENT);
}

static void test_versions(void)
{
	nvmlDevice_t device = device_at(0);
	struct nvml_memory_v2 memory = {.version = NVML_VERSION(struct nvml_memory_v2, 2)};
	struct nvml_temperature temperature = {0};
	nvmlReturn_t (*memory_v2)(nvmlDevice_t, struct nvml_memory_v2 *) =
		CALL(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t, struct nvml_memory_v2 *);

	CHECK(memory_v2(device, &memory) == NVML_SUCCESS);
	CHECK(memory.total == memory.free + memory.used);
	memory.version = 1;
	CHECK(memory_v2(device, &memory) == NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	CHECK(CALL(nvmlDeviceGetTemperatureV, nvmlDevice_t, struct nvml_temperature *)(
		      device, &temperature) == NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

/* test_pci checks that the call does not write beyond the end of an old structure. */
static void test_pci(void)
{
	nvmlDevice_t device = device_at(1);
	struct nvml_pci_v3 newest;
	struct {
		struct nvml_pci_v1 pci;
		unsigned char guard[64];
	} oldest;

	memset(&oldest, 0xa5, sizeof(oldest));
	CHECK(CALL(nvmlDeviceGetPciInfo, nvmlDevice_t, struct nvml_pci_v1 *)(
		      device, &oldest.pci) == NVML_SUCCESS);
	CHECK(CALL(nvmlDeviceGetPciInfo_v3, nvmlDevice_t, struct nvml_pci_v3 *)(
		      device, &newest) == NVML_SUCCESS);
	CHECK(oldest.pci.bus == newest.bus && oldest.pci.domain == newest.domain);
	CHECK(strcmp(oldest.pci.bus_id, newest.bus_id_legacy) == 0);
	for (size_t i = 0; i < sizeof(oldest.guard); i++)
		CHECK(oldest.guard[i] == 0xa5);
}

static void test_uuids(void)
{
	struct nvml_uuid uuid = {.version = NVML_VERSION(struct nvml_uuid, 1),
				 .type = NVML_UUID_TYPE_ASCII};
	nvmlReturn_t (*by_uuid)(const struct nvml_uuid *, nvmlDevice_t *) =
		CALL(nvmlDeviceGetHandleByUUIDV, const struct nvml_uuid *, nvmlDevice_t *);
	nvmlDevice_t device = device_at(1);
	nvmlDevice_t found = NULL;

	CHECK(CALL(nvmlDeviceGetUUID, nvmlDevice_t, char *, unsigned)(
		      device, uuid.text, sizeof(uuid.text)) == NVML_SUCCESS);
	CHECK(by_uuid(&uuid, &found) == NVML_SUCCESS);
	CHECK(found == device);
	uuid.type = NVML_UUID_TYPE_BINARY;
	CHECK(by_uuid(&uuid, &found) == NVML_ERROR_NOT_FOUND);
	uuid.version = 7;
	CHECK(by_uuid(&uuid, &found) == NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

/* start_holder starts a process that holds 1000 bytes of GPU 0 until its pipe closes. */
static pid_t start_holder(int *stop)
{
	int ends[2], ready[2];
	char byte = 0;
	pid_t pid;

	if (pipe(ends) || pipe(ready))
		exit(1);
	pid = fork();
	if (pid == 0) {
		struct gs_handle handle;

		close(ends[1]);
		if (gs_open(&handle, gs_path(), GS_PROCESS))
			_exit(1);
		gs_lock(&handle);
		(void)gs_charge(&handle, 0, 1000);
		gs_unlock(&handle);
		_exit(write(ready[1], &byte, 1) != 1 || read(ends[0], &byte, 1) != 0);
	}
	close(ends[0]);
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	close(ready[0]);
	*stop = ends[1];
	return pid;
}

static void test_process_lists(void)
{
	nvmlDevice_t device = device_at(0);
	struct nvml_process_v1 first[2] = {{0, 0}, {77, 77}};
	struct nvml_process_v2 third[2] = {{.pid = 0}, {.pid = 77}};
	unsigned count = 0;
	int stop, status;
	pid_t pid = start_holder(&stop);
	nvmlReturn_t (*v1)(nvmlDevice_t, unsigned *, struct nvml_process_v1 *) =
		CALL(nvmlDeviceGetComputeRunningProcesses, nvmlDevice_t, unsigned *,
		     struct nvml_process_v1 *);
	nvmlReturn_t (*v3)(nvmlDevice_t, unsigned *, struct nvml_process_v2 *) =
		CALL(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t, unsigned *,
		     struct nvml_process_v2 *);

	CHECK(v3(device, &count, NULL) == NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK(count == 1);
	count = 2;
	CHECK(v1(device, &count, first) == NVML_SUCCESS);
	CHECK(count == 1 && (pid_t)first[0].pid == pid && first[0].used_bytes == 1000);
	CHECK(first[1].pid == 77);
	count = 2;
	CHECK(v3(device, &count, third) == NVML_SUCCESS);
	CHECK(count == 1 && (pid_t)third[0].pid == pid && third[0].used_bytes == 1000);
	CHECK(third[0].gpu_instance == NVML_NO_INSTANCE && third[1].pid == 77);
	close(stop);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	count = 2;
	CHECK(v3(device, &count, third) == NVML_SUCCESS);
	CHECK(count == 0);
}

static void *query(void *unused)
{
	nvmlDevice_t device = device_at(0);

	(void)unused;
	for (int i = 0; i < ROUNDS; i++) {
		struct nvml_memory memory;
		struct nvml_utilization rates;

		CHECK(CALL(nvmlInit_v2, void)() == NVML_SUCCESS);
		CHECK(CALL(nvmlDeviceGetMemoryInfo, nvmlDevice_t, struct nvml_memory *)(
			      device, &memory) == NVML_SUCCESS);
		CHECK(CALL(nvmlDeviceGetUtilizationRates, nvmlDevice_t,
			   struct nvml_utilization *)(device, &rates) == NVML_SUCCESS);
		CHECK(CALL(nvmlShutdown, void)() == NVML_SUCCESS);
	}
	return NULL;
}

static void *await_event(void *set)
{
	struct nvml_event event;
	nvmlReturn_t result = CALL(nvmlEventSetWait_v2, nvmlEventSet_t, struct nvml_event *,
				   unsigned)(set, &event, 20000);

	CHECK(result == NVML_SUCCESS && event.data == 31);
	return NULL;
}

static void add_xid(void)
{
	struct gs_handle handle;

	/*
	 * A child adds the XID, because closing the state in this process would drop NVML's locks.
	 */
	if (fork() == 0) {
		if (gs_open(&handle, gs_path(), GS_OBSERVER))
			_exit(1);
		gs_lock(&handle);
		gs_add_xid(handle.state, 0, 31);
		gs_unlock(&handle);
		_exit(0);
	}
	wait(NULL);
}

/* test_threads makes threads query while another thread waits for an event. */
static void test_threads(void)
{
	pthread_t threads[THREADS], waiter;
	nvmlEventSet_t set = NULL;

	CHECK(CALL(nvmlEventSetCreate, nvmlEventSet_t *)(&set) == NVML_SUCCESS);
	CHECK(CALL(nvmlDeviceRegisterEvents, nvmlDevice_t, nvml_u64, nvmlEventSet_t)(
		      device_at(0), NVML_EVENT_XID_CRITICAL_ERROR, set) == NVML_SUCCESS);
	add_xid();
	pthread_create(&waiter, NULL, await_event, set);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, query, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	pthread_join(waiter, NULL);
	CHECK(CALL(nvmlEventSetFree, nvmlEventSet_t)(set) == NVML_SUCCESS);
}

/* test_fork checks that a forked child continues to use the library that its parent initialised. */
static void test_fork(void)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		struct nvml_memory memory;

		_exit(CALL(nvmlDeviceGetMemoryInfo, nvmlDevice_t, struct nvml_memory *)(
			      device_at(0), &memory) != NVML_SUCCESS);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* test_visibility checks that a container sees the GPUs whose device files it has. */
static void test_visibility(void)
{
	char path[64];
	unsigned count = 0;
	int status = 0;
	pid_t pid;

	(void)snprintf(path, sizeof(path), "%s/gpu0", dir);
	CHECK(unlink(path) == 0);
	pid = fork();
	if (pid == 0) {
		unsigned minor = 0;
		bool ok = CALL(nvmlShutdown, void)() == NVML_SUCCESS &&
			  CALL(nvmlInit, void)() == NVML_SUCCESS &&
			  CALL(nvmlDeviceGetCount, unsigned *)(&count) == NVML_SUCCESS &&
			  count == GPUS - 1 &&
			  CALL(nvmlDeviceGetMinorNumber, nvmlDevice_t, unsigned *)(
				  device_at(0), &minor) == NVML_SUCCESS &&
			  minor == 1;

		_exit(!ok);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

static void test_no_driver(void)
{
	setenv("GPUSIM_STATE", "/nonexistent/state", 1);
	CHECK(CALL(nvmlInit_v2, void)() == NVML_ERROR_DRIVER_NOT_LOADED);
}

static void make_state(void)
{
	struct gs_machine machine = {.gpu_count = GPUS};
	char path[64];

	if (!mkdtemp(dir))
		exit(1);
	gs_driver_defaults(&machine);
	for (unsigned i = 0; i < GPUS; i++) {
		gs_gpu_defaults(&machine.gpus[i], i);
		machine.gpus[i].uuid[0] = (uint8_t)(i + 1);
	}
	if (gs_create(dir, &machine))
		exit(1);
	(void)snprintf(path, sizeof(path), "%s/state", dir);
	setenv("GPUSIM_STATE", path, 1);
}

int main(int argc, char **argv)
{
	library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	if (!library) {
		fprintf(stderr, "usage: nvml_test LIBRARY (%s)\n", argc == 2 ? dlerror() : "");
		return 2;
	}
	test_no_driver();
	make_state();
	test_before_init();
	CHECK(CALL(nvmlInit_v2, void)() == NVML_SUCCESS);
	test_bad_arguments();
	test_versions();
	test_pci();
	test_uuids();
	test_process_lists();
	test_threads();
	test_fork();
	test_visibility();
	CHECK(CALL(nvmlShutdown, void)() == NVML_SUCCESS);
	CHECK(gs_destroy(dir) == 0);
	if (failures)
		return 1;
	puts("nvml: ok");
	return 0;
}

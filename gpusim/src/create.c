// SPDX-License-Identifier: Apache-2.0
/* This file creates and removes a machine's state and device files. */
#include "state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void gs_gpu_defaults(struct gs_gpu_config *config, uint32_t index)
{
	memset(config, 0, sizeof(*config));
	(void)snprintf(config->name, sizeof(config->name), "NVIDIA Simulated H200");
	(void)snprintf(config->pci_bus_id, sizeof(config->pci_bus_id), "0000:%02x:00.0",
		       0x19u + 0x10u * index);
	config->memory_bytes = UINT64_C(16) << 30;
	config->minor = index;
	config->sm_count = 132;
	config->cc_major = 9;
	config->cc_minor = 0;
	config->context_bytes = UINT64_C(512) << 20;
	config->alloc_granularity = 512;
	config->slice_ns = 1000000;
	config->switch_ns = 0;
	config->default_kernel_ns = 2000;
	config->device_bandwidth = UINT64_C(2000000000000);
	config->host_bandwidth = UINT64_C(50000000000);
	config->slew_period_ns = UINT64_C(20000000000);
	config->power_period_ns = UINT64_C(1000000000);
}

void gs_driver_defaults(struct gs_machine *machine)
{
	memset(&machine->driver, 0, sizeof(machine->driver));
	(void)snprintf(machine->driver.names, sizeof(machine->driver.names), "r580");
	(void)snprintf(machine->driver_version, sizeof(machine->driver_version), "580.159.04");
	machine->cuda_version = 13000;
	machine->driver.trap = GS_TRAP_LAUNCH_FAILED;
}

void gs_set_gpu(struct gs_gpu *gpu, const struct gs_gpu_config *config)
{
	memcpy(gpu->uuid, config->uuid, sizeof(gpu->uuid));
	memcpy(gpu->name, config->name, sizeof(gpu->name));
	memcpy(gpu->pci_bus_id, config->pci_bus_id, sizeof(gpu->pci_bus_id));
	gpu->memory_bytes = config->memory_bytes;
	gpu->minor = config->minor;
	gpu->sm_count = config->sm_count;
	gpu->cc_major = config->cc_major;
	gpu->cc_minor = config->cc_minor;
	gpu->context_bytes = config->context_bytes;
	gpu->alloc_granularity = config->alloc_granularity;
	gpu->slice_ns = config->slice_ns;
	gpu->switch_ns = config->switch_ns;
	gpu->default_kernel_ns = config->default_kernel_ns;
	gpu->device_bandwidth = config->device_bandwidth;
	gpu->host_bandwidth = config->host_bandwidth;
	gpu->init_ns = config->init_ns;
	gpu->context_start_ns = config->context_start_ns;
	gpu->chunk_bytes = config->chunk_bytes;
	gpu->retain_bytes = config->retain_bytes;
	gpu->drift_ppm = config->drift_ppm;
	gpu->slew_ppm = config->slew_ppm;
	gpu->slew_period_ns = config->slew_period_ns;
	gpu->connections = config->connections;
	gpu->idle_stamp = config->idle_stamp;
	gpu->yield_ns = config->yield_ns;
	gpu->gap_ns = config->gap_ns;
	gpu->launch_ns = config->launch_ns;
	gpu->power_period_ns = config->power_period_ns;
	gpu->power_ppm = config->power_ppm;
	gpu->crowding_ppm = config->crowding_ppm;
	gpu->copy_stamp = config->copy_stamp;
	gpu->sampled = config->sampled;
	gpu->mig = config->mig;
	gpu->current = GS_NO_PROC;
}

static int write_state(int fd, const struct gs_machine *machine)
{
	struct gs_state *state;

	/* Any user may use a GPU, as with the modes of real device files. */
	if (fchmod(fd, 0666) != 0 || ftruncate(fd, (off_t)sizeof(*state)) != 0)
		return -errno;
	state = mmap(NULL, sizeof(*state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (state == MAP_FAILED)
		return -errno;
	state->version = GS_VERSION;
	state->gpu_count = machine->gpu_count;
	state->size = sizeof(*state);
	state->clock_ns = gs_now();
	state->driver = machine->driver;
	state->driver_version = machine->cuda_version;
	memcpy(state->driver_version_text, machine->driver_version, sizeof(state->driver_version_text));
	state->spin_ns = 60000;
	state->pid_namespace = gs_pid_namespace();
	for (uint32_t g = 0; g < machine->gpu_count; g++)
		gs_set_gpu(&state->gpus[g], &machine->gpus[g]);
	state->magic = GS_MAGIC;
	munmap(state, sizeof(*state));
	return 0;
}

static int make_device(const char *dir, const char *kind, uint32_t minor)
{
	char path[512];
	int fd, err;

	(void)snprintf(path, sizeof(path), "%s/%s%u", dir, kind, minor);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	err = fchmod(fd, 0666) == 0 ? 0 : -errno;
	close(fd);
	return err;
}

int gs_make_devices(const char *dir, const struct gs_gpu_config *config)
{
	uint32_t cap = gs_mig_cap(config->minor, config->mig.gpu_instance);
	int err = make_device(dir, "gpu", config->minor);

	if (!err && config->mig.role == GS_MIG_DEVICE)
		err = make_device(dir, "cap", cap);
	if (!err && config->mig.role == GS_MIG_DEVICE)
		err = make_device(dir, "cap", cap + 1);
	return err;
}

int gs_create(const char *dir, const struct gs_machine *machine)
{
	const uint32_t count = machine->gpu_count;
	char path[512], temporary[520];
	int fd, err;

	if (count == 0 || count > GS_MAX_GPUS)
		return -EINVAL;
	if (mkdir(dir, 0755) != 0 && errno != EEXIST)
		return -errno;
	for (uint32_t g = 0; g < count; g++) {
		err = gs_make_devices(dir, &machine->gpus[g]);
		if (err)
			return err;
	}
	(void)snprintf(path, sizeof(path), "%s/state", dir);
	(void)snprintf(temporary, sizeof(temporary), "%s.new", path);
	fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0)
		return -errno;
	err = write_state(fd, machine);
	/* If two processes create the state at once, link fails for the second process. rename would
	 * succeed. */
	if (!err && link(temporary, path) != 0)
		err = -errno;
	(void)unlink(temporary);
	close(fd);
	return err;
}

int gs_destroy(const char *dir)
{
	DIR *entries = opendir(dir);
	struct dirent *entry;
	int err = 0;

	if (!entries)
		return -errno;
	while ((entry = readdir(entries))) {
		unsigned minor;
		char rest;
		bool ours = strcmp(entry->d_name, "state") == 0 ||
			    strcmp(entry->d_name, "state.new") == 0 ||
			    sscanf(entry->d_name, "gpu%u%c", &minor, &rest) == 1 ||
			    sscanf(entry->d_name, "cap%u%c", &minor, &rest) == 1;

		if (ours && unlinkat(dirfd(entries), entry->d_name, 0) != 0 && !err)
			err = -errno;
	}
	closedir(entries);
	if (!err && rmdir(dir) != 0 && errno != ENOTEMPTY && errno != EBUSY)
		err = -errno;
	return err;
}

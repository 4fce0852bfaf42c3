// SPDX-License-Identifier: Apache-2.0
/*
 * This file reads configurations and profiles: lines of "key = value", with # before comments. A
 * configuration may add GPUs by [gpu] lines, and MIG devices of the last GPU by lines such as
 * [mig 1g.10gb]. Keys before the first [gpu] line are defaults for all GPUs. A profile has no [gpu]
 * lines. Unknown keys are errors in configurations and profiles.
 */
#include "config.h"
#include "value.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* ---- values ---- */

/* parse_uuid parses "GPU-xxxxxxxx-xxxx-…", "MIG-…", or the 32 hexadecimal digits with or without
 * dashes. */
static bool parse_uuid(const char *text, uint8_t uuid[16])
{
	unsigned n = 0;

	if (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)
		text += 4;
	for (; *text; text++) {
		const char *digits = "0123456789abcdef";
		const char *digit;

		if (*text == '-')
			continue;
		digit = strchr(digits, tolower((unsigned char)*text));
		if (!digit || n == 32)
			return false;
		uuid[n / 2] = (uint8_t)(uuid[n / 2] << 4 | (digit - digits));
		n++;
	}
	return n == 32;
}

static bool copy_text(char *to, size_t size, const char *text)
{
	if (!*text || strlen(text) >= size)
		return false;
	memcpy(to, text, strlen(text) + 1);
	return true;
}

/* ---- keys of a GPU ---- */

enum kind { SIZE, SIZE_NOT_0, TIME, TIME_NOT_0, PPM, PPM_NOT_NEGATIVE, NUMBER, NUMBER_NOT_0, NUMBER_32, NUMBER_32_NOT_0, CONNECTIONS, TEXT, UUID, FLAG, PERCENT, UTILISATION, POWER_PERIOD };

struct key {
	const char *name;
	enum kind kind;
	size_t offset;
	size_t size; /* of a text */
};

#define GPU(name, kind, field) \
	{name, kind, offsetof(struct gs_gpu_config, field), sizeof(((struct gs_gpu_config *)0)->field)}

static const struct key gpu_keys[] = {
	GPU("uuid", UUID, uuid), GPU("name", TEXT, name), GPU("pci_bus_id", TEXT, pci_bus_id),
	GPU("memory", SIZE_NOT_0, memory_bytes), GPU("minor", NUMBER_32, minor),
	GPU("sm_count", NUMBER_32_NOT_0, sm_count), GPU("cc_major", NUMBER_32, cc_major),
	GPU("cc_minor", NUMBER_32, cc_minor), GPU("context", SIZE, context_bytes),
	GPU("granularity", SIZE_NOT_0, alloc_granularity), GPU("chunk", SIZE, chunk_bytes),
	GPU("retain", SIZE, retain_bytes), GPU("slice", TIME_NOT_0, slice_ns),
	GPU("switch", TIME, switch_ns), GPU("init", TIME, init_ns),
	GPU("context_start", TIME, context_start_ns), GPU("default_kernel", TIME, default_kernel_ns),
	GPU("device_bandwidth", NUMBER_NOT_0, device_bandwidth),
	GPU("host_bandwidth", NUMBER_NOT_0, host_bandwidth), GPU("clock_drift", PPM, drift_ppm),
	GPU("clock_slew", PPM_NOT_NEGATIVE, slew_ppm),
	GPU("clock_slew_period", TIME_NOT_0, slew_period_ns),
	GPU("connections", CONNECTIONS, connections), GPU("idle_stamp", FLAG, idle_stamp),
	GPU("yield", TIME, yield_ns), GPU("gap", TIME, gap_ns), GPU("launch_latency", TIME, launch_ns),
	GPU("power", PERCENT, power_ppm), GPU("power_period", POWER_PERIOD, power_period_ns),
	GPU("crowding", PERCENT, crowding_ppm), GPU("copy_stamp", FLAG, copy_stamp),
	GPU("utilisation", UTILISATION, sampled), GPU("mig", FLAG, mig.role),
};

#define DRIVER(name, kind, field) \
	{name, kind, offsetof(struct gs_machine, field), sizeof(((struct gs_machine *)0)->field)}

static const struct key driver_keys[] = {
	DRIVER("driver", TEXT, driver_version), DRIVER("cuda", NUMBER_NOT_0, cuda_version),
	DRIVER("names", TEXT, driver.names), DRIVER("nvml_lock", FLAG, driver.nvml_lock),
	DRIVER("nvml_open", TIME, driver.nvml_open_ns),
	DRIVER("nvml_handle", TIME, driver.nvml_handle_ns),
	DRIVER("nvml_processes", TIME, driver.nvml_processes_ns),
	DRIVER("lazy_loading", FLAG, driver.lazy_loading),
	DRIVER("lazy_heap", FLAG, driver.lazy_heap),
	DRIVER("load_waits", FLAG, driver.load_waits), DRIVER("free_waits", FLAG, driver.free_waits),
	DRIVER("imports_keep", FLAG, driver.imports_keep),
	DRIVER("map_parts", FLAG, driver.map_parts),
	DRIVER("events_bound", FLAG, driver.events_bound),
	DRIVER("capture_rules", FLAG, driver.capture_rules),
	DRIVER("constructor", TEXT, driver.constructor),
	DRIVER("trap", NUMBER_32_NOT_0, driver.trap),
};

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static bool set_flag(uint32_t *flag, const char *value)
{
	*flag = strcmp(value, "yes") == 0;
	return *flag || strcmp(value, "no") == 0;
}

/* set_choice sets a key to the index of its value in names. */
static bool set_choice(uint32_t *to, const char *const *names, size_t count, const char *value)
{
	for (uint32_t i = 0; i < count; i++) {
		if (strcmp(names[i], value) != 0)
			continue;
		*to = i;
		return true;
	}
	return false;
}

static const char *const utilisation_names[] = {"exact", "sampled"};

static bool set_number(uint64_t *to, const char *value)
{
	const char *rest;

	return value_number(value, to, &rest) && !*rest;
}

static bool set_value(const struct key *key, void *to, const char *value)
{
	switch (key->kind) {
	case SIZE:
		return value_size(value, to);
	case SIZE_NOT_0:
		return value_size(value, to) && *(uint64_t *)to > 0;
	case TIME:
		return value_time(value, to);
	case TIME_NOT_0:
		return value_time(value, to) && *(uint64_t *)to > 0;
	case PPM:
		return value_ppm(value, to);
	case PPM_NOT_NEGATIVE:
		return value_ppm(value, to) && *(int64_t *)to >= 0;
	case NUMBER:
		return set_number(to, value);
	case NUMBER_NOT_0:
		return set_number(to, value) && *(uint64_t *)to > 0;
	case NUMBER_32:
		return value_u32(value, to);
	case NUMBER_32_NOT_0:
		return value_u32(value, to) && *(uint32_t *)to > 0;
	case CONNECTIONS:
		return value_u32(value, to) && *(uint32_t *)to <= GS_MAX_CONNECTIONS;
	case TEXT:
		return copy_text(to, key->size, value);
	case UUID:
		return parse_uuid(value, to);
	case FLAG:
		return set_flag(to, value);
	case PERCENT:
		return value_percent(value, to);
	case UTILISATION:
		return set_choice(to, utilisation_names, COUNT(utilisation_names), value);
	case POWER_PERIOD:
		return value_time(value, to) && *(uint64_t *)to >= 2000;
	}
	return false;
}

static bool set_key(const struct key *keys, size_t count, void *base, const char *name,
		    const char *value)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(keys[i].name, name) == 0)
			return set_value(&keys[i], (char *)base + keys[i].offset, value);
	return false;
}

/* ---- keys of the driver with special values ---- */

static const char *const nvml_names[] = {
	[GS_NVML_TRUE] = "true", [GS_NVML_HOST_PIDS] = "host-pids", [GS_NVML_OWN_ZERO] = "own-zero",
	[GS_NVML_OWN_BYTES] = "own-bytes", [GS_NVML_NOT_AVAILABLE] = "not-available",
};

static const char *const exit_names[] = {
	[GS_EXIT_NEVER] = "never", [GS_EXIT_HANDLER] = "handler", [GS_EXIT_DESTRUCTOR] = "destructor",
};

static bool set_driver_key(struct config *config, const char *name, char *value)
{
	struct gs_machine *machine = &config->machine;

	if (strcmp(name, "nvml") == 0)
		return set_choice(&machine->driver.nvml, nvml_names, COUNT(nvml_names), value);
	if (strcmp(name, "exit") == 0)
		return set_choice(&machine->driver.exits, exit_names, COUNT(exit_names), value);
	if (strcmp(name, "cost") == 0)
		return config_add_cost(config, value);
	if (strcmp(name, "fail") == 0)
		return config_add_failure(config, value);
	return set_key(driver_keys, COUNT(driver_keys), machine, name, value);
}

/* ---- files ---- */

static char *trim(char *text)
{
	char *end;

	while (isspace((unsigned char)*text))
		text++;
	end = text + strlen(text);
	while (end > text && isspace((unsigned char)end[-1]))
		*--end = '\0';
	return text;
}

static uint32_t count_cards(const struct gs_machine *machine)
{
	uint32_t cards = 0;

	for (uint32_t g = 0; g < machine->gpu_count; g++)
		cards += machine->gpus[g].mig.role != GS_MIG_DEVICE;
	return cards;
}

bool config_add_gpu(struct config *config)
{
	struct gs_machine *machine = &config->machine;
	struct gs_gpu_config own;
	struct gs_gpu_config *gpu;

	if (machine->gpu_count == GS_MAX_GPUS)
		return false;
	gs_gpu_defaults(&own, count_cards(machine));
	gpu = &machine->gpus[machine->gpu_count++];
	*gpu = config->defaults;
	gpu->minor = own.minor;
	memcpy(gpu->pci_bus_id, own.pci_bus_id, sizeof(own.pci_bus_id));
	return true;
}

/* add_mig adds a MIG device to the last GPU, which is then in MIG mode. `line` is "[mig 1g.10gb]". */
static bool add_mig(struct config *config, char *line)
{
	struct gs_machine *machine = &config->machine;
	uint32_t instance = 1, parent = machine->gpu_count - 1;
	struct gs_gpu_config *gpu;

	if (machine->gpu_count == 0 || machine->gpu_count == GS_MAX_GPUS)
		return false;
	for (; machine->gpus[parent].mig.role == GS_MIG_DEVICE; parent--)
		instance++;
	line[strcspn(line, "]")] = '\0';
	gpu = &machine->gpus[machine->gpu_count];
	if (instance > GS_MIG_MAX ||
	    !gs_mig_make(gpu, &machine->gpus[parent], parent, line + strlen("[mig ")))
		return false;
	gpu->mig.gpu_instance = instance;
	machine->gpus[parent].mig.role = GS_MIG_ON;
	machine->gpu_count++;
	return true;
}

static bool set_line(struct config *config, char *line, bool gpus)
{
	struct gs_machine *machine = &config->machine;
	struct gs_gpu_config *gpu = machine->gpu_count ? &machine->gpus[machine->gpu_count - 1] :
							 &config->defaults;
	char *equals, *name, *value;

	line[strcspn(line, "#")] = '\0';
	line = trim(line);
	if (!*line)
		return true;
	if (gpus && strcmp(line, "[gpu]") == 0)
		return config_add_gpu(config);
	if (gpus && strncmp(line, "[mig ", strlen("[mig ")) == 0)
		return add_mig(config, line);
	equals = strchr(line, '=');
	if (!equals)
		return false;
	*equals = '\0';
	name = trim(line);
	value = trim(equals + 1);
	return set_key(gpu_keys, COUNT(gpu_keys), gpu, name, value) ||
	       (machine->gpu_count == 0 && set_driver_key(config, name, value));
}

/* read_line reads a line and removes its end and comment. read_line returns 1, 0 at the file's end,
 * or -1. */
static int read_line(struct config *config, FILE *file, char *line, size_t size)
{
	size_t length;

	errno = 0;
	if (!fgets(line, (int)size, file)) {
		if (ferror(file))
			(void)snprintf(config->problem, sizeof(config->problem), "%s", strerror(errno));
		return ferror(file) ? -1 : 0;
	}
	length = strlen(line);
	if (line[length - (length > 0)] == '\n' || feof(file))
		return 1;
	(void)snprintf(config->problem, sizeof(config->problem), "longer than %zu characters, or not text",
		       size - 2);
	return -1;
}

static bool read_lines(struct config *config, FILE *file, bool gpus, int *number)
{
	char line[512], copy[512];
	int more;

	while ((more = read_line(config, file, line, sizeof(line))) > 0) {
		++*number;
		memcpy(copy, line, sizeof(copy));
		if (set_line(config, line, gpus))
			continue;
		if (!*config->problem)
			(void)snprintf(config->problem, sizeof(config->problem),
				       "unknown key or bad value: %.80s", trim(copy));
		return false;
	}
	*number += more < 0;
	return more == 0;
}

int config_read(struct config *config, const char *path, bool gpus)
{
	FILE *file = fopen(path, "re");
	int number = 0;
	bool good;

	if (!file) {
		fprintf(stderr, "gpusim: %s: %s\n", path, strerror(errno));
		return 1;
	}
	good = read_lines(config, file, gpus, &number);
	if (!good)
		fprintf(stderr, "gpusim: %s:%d: %s\n", path, number, config->problem);
	fclose(file);
	return good ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
/* This file implements NVML's functions about the whole machine, and the names of its errors. */
#include "nvml.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

NVML_FUNCTION(nvmlSystemGetDriverVersion, char *version, unsigned length)
{
	nvmlReturn_t result = nv_enter();

	if (result != NVML_SUCCESS)
		return result;
	return nv_copy_text(version, length, nv_state()->state->driver_version_text);
}

NVML_FUNCTION(nvmlSystemGetNVMLVersion, char *version, unsigned length)
{
	nvmlReturn_t result = nv_enter();
	char text[32];

	if (result != NVML_SUCCESS)
		return result;
	/* NVML puts the CUDA generation before the driver's version. */
	(void)snprintf(text, sizeof(text), "%u.%s",
		       (unsigned)(nv_state()->state->driver_version / 1000),
		       nv_state()->state->driver_version_text);
	return nv_copy_text(version, length, text);
}

/* Both functions also work before the library is initialised. */
NVML_FUNCTION(nvmlSystemGetCudaDriverVersion_v2, int *version)
{
	nvmlReturn_t result = nv_enter();

	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (result != NVML_SUCCESS && result != NVML_ERROR_UNINITIALIZED)
		return result;
	*version = result == NVML_SUCCESS ? (int)nv_state()->state->driver_version : 13000;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlSystemGetCudaDriverVersion, int *version)
{
	return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVML_FUNCTION(nvmlSystemGetProcessName, unsigned pid, char *name, unsigned length)
{
	nvmlReturn_t result = nv_enter();
	char path[32], text[1024];
	ssize_t size;
	int fd;

	if (result != NVML_SUCCESS)
		return result;
	if (!name || length == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	(void)snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return NVML_ERROR_NOT_FOUND;
	size = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (size <= 0)
		return NVML_ERROR_NOT_FOUND;
	text[size] = '\0'; /* zeros separate the arguments, of which the first argument is the program */
	(void)snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}

/* none returns a count of 0, because the simulator has no units and no excluded devices. */
static nvmlReturn_t none(unsigned *count)
{
	nvmlReturn_t result = nv_enter();

	if (result != NVML_SUCCESS)
		return result;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	return NVML_SUCCESS;
}

NVML_FUNCTION(nvmlUnitGetCount, unsigned *count)
{
	return none(count);
}

NVML_FUNCTION(nvmlGetExcludedDeviceCount, unsigned *count)
{
	return none(count);
}

NVML_FUNCTION(nvmlGetBlacklistDeviceCount, unsigned *count)
{
	return none(count);
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result);

const char *nvmlErrorString(nvmlReturn_t result)
{
	static const struct {
		nvmlReturn_t code;
		const char *text;
	} texts[] = {
		{NVML_SUCCESS, "Success"},
		{NVML_ERROR_UNINITIALIZED, "Uninitialized"},
		{NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
		{NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
		{NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
		{NVML_ERROR_NOT_FOUND, "Not Found"},
		{NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
		{NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
		{NVML_ERROR_TIMEOUT, "Timeout"},
		{NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
		{NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
		{NVML_ERROR_MEMORY, "Insufficient Memory"},
		{NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
		{NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].code == result)
			return texts[i].text;
	return "Unknown Error";
}

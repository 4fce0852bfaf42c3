// SPDX-License-Identifier: Apache-2.0
//
// vgpu-devices prints the GPUs that CUDA shows to vgpu-devices, as a line of JSON. vgpuctl is
// linked statically, to run in any container, and a static program cannot open the driver.
// Therefore vgpu-devices is a separate program.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// These declarations are the used part of the CUDA driver's ABI.
typedef int vd_device;
struct vd_uuid {
	unsigned char bytes[16];
};

struct vd_driver {
	int (*init)(unsigned int flags);
	int (*count)(int *count);
	int (*get)(vd_device *device, int ordinal);
	int (*name)(char *name, int length, vd_device device);
	int (*uuid)(struct vd_uuid *uuid, vd_device device);
	int (*memory)(size_t *bytes, vd_device device);
	int (*version)(int *version);
	int (*error_name)(int error, const char **name);
};

static const char vd_library[] = "libcuda.so.1";

static int vd_fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	return -1;
}

static int vd_check(const struct vd_driver *driver, const char *call, int result)
{
	const char *name = NULL;

	if (result == 0)
		return 0;
	if (driver->error_name(result, &name) != 0 || name == NULL)
		name = "unknown error";
	fprintf(stderr, "%s: %s (%d)\n", call, name, result);
	return -1;
}

// vd_find looks up a function. to may point to any pointer to a function.
static int vd_find(void *library, const char *name, void *to)
{
	void *found = dlsym(library, name);

	if (found == NULL)
		return vd_fail(vd_library, dlerror());
	memcpy(to, &found, sizeof found);
	return 0;
}

static int vd_open(struct vd_driver *driver)
{
	void *library = dlopen(vd_library, RTLD_NOW | RTLD_LOCAL);

	if (library == NULL) {
		fprintf(stderr, "cannot open the CUDA driver: %s: install the NVIDIA driver, or add its "
				"directory to LD_LIBRARY_PATH\n", dlerror());
		return -1;
	}
	if (vd_find(library, "cuInit", &driver->init) || vd_find(library, "cuDeviceGetCount", &driver->count) ||
	    vd_find(library, "cuDeviceGet", &driver->get) || vd_find(library, "cuDeviceGetName", &driver->name) ||
	    vd_find(library, "cuDeviceTotalMem_v2", &driver->memory) ||
	    vd_find(library, "cuDriverGetVersion", &driver->version) ||
	    vd_find(library, "cuGetErrorName", &driver->error_name))
		return -1;
	// cuDeviceGetUuid_v2 returns the UUID of a MIG device. Drivers before CUDA 11.4 have only
	// cuDeviceGetUuid, which returns the UUID of the MIG device's GPU.
	if (dlsym(library, "cuDeviceGetUuid_v2") != NULL)
		return vd_find(library, "cuDeviceGetUuid_v2", &driver->uuid);
	return vd_find(library, "cuDeviceGetUuid", &driver->uuid);
}

static void vd_print_string(const char *text)
{
	putchar('"');
	for (; *text != '\0'; text++) {
		unsigned char c = (unsigned char)*text;

		if (c < 0x20 || c == '"' || c == '\\')
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

// vd_print_uuid prints a UUID in NVML's form. CUDA identifies a MIG device only
// by its name, which ends in the profile: "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
static void vd_print_uuid(const struct vd_uuid *uuid, const char *name)
{
	const unsigned char *b = uuid->bytes;

	printf("\"%s-", strstr(name, " MIG ") != NULL ? "MIG" : "GPU");
	for (int i = 0; i < 16; i++)
		printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
	putchar('"');
}

static int vd_print_device(const struct vd_driver *driver, int ordinal)
{
	vd_device device = 0;
	char name[256] = "";
	struct vd_uuid uuid;
	size_t bytes = 0;
	int version = 0;

	if (vd_check(driver, "cuDeviceGet", driver->get(&device, ordinal)) ||
	    vd_check(driver, "cuDeviceGetName", driver->name(name, (int)sizeof name, device)) ||
	    vd_check(driver, "cuDeviceGetUuid", driver->uuid(&uuid, device)) ||
	    vd_check(driver, "cuDeviceTotalMem", driver->memory(&bytes, device)) ||
	    vd_check(driver, "cuDriverGetVersion", driver->version(&version)))
		return -1;
	printf("%s{\"index\":%d,\"uuid\":", ordinal > 0 ? "," : "", ordinal);
	vd_print_uuid(&uuid, name);
	printf(",\"name\":");
	vd_print_string(name);
	printf(",\"memoryBytes\":%zu,\"cudaVersion\":%d}", bytes, version);
	return 0;
}

int main(void)
{
	struct vd_driver driver;
	int count = 0;

	if (vd_open(&driver) || vd_check(&driver, "cuInit", driver.init(0)) ||
	    vd_check(&driver, "cuDeviceGetCount", driver.count(&count)))
		return EXIT_FAILURE;
	putchar('[');
	for (int i = 0; i < count; i++)
		if (vd_print_device(&driver, i))
			return EXIT_FAILURE;
	puts("]");
	return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

// SPDX-License-Identifier: Apache-2.0
//
// vgpu-context creates a CUDA context on one GPU, prints "ready", and keeps the context until its
// standard input ends. The parent process measures the context before it closes the standard input.
// The arguments are the path of the driver's library and the GPU's UUID. If the path is "", the
// loader finds the library.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// vc_longest bounds the run time of vgpu-context: the driver may hang and the parent may have
// ended.
static const unsigned int vc_longest = 120; // seconds

typedef int vc_device;
struct vc_uuid {
	unsigned char bytes[16];
};

struct vc_driver {
	int (*init)(unsigned int flags);
	int (*count)(int *count);
	int (*get)(vc_device *device, int ordinal);
	int (*uuid)(struct vc_uuid *uuid, vc_device device);
	int (*retain)(void **context, vc_device device);
	int (*error_name)(int error, const char **name);
};

static int vc_fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	return -1;
}

static int vc_check(const struct vc_driver *driver, const char *call, int result)
{
	const char *name = NULL;

	if (result == 0)
		return 0;
	if (driver->error_name(result, &name) != 0 || name == NULL)
		name = "unknown error";
	fprintf(stderr, "%s: %s (%d)\n", call, name, result);
	return -1;
}

// vc_find looks up a function. to may point to any pointer to a function.
static int vc_find(void *library, const char *name, void *to)
{
	void *found = dlsym(library, name);

	if (found == NULL)
		return vc_fail("the CUDA driver lacks a function", name);
	memcpy(to, &found, sizeof found);
	return 0;
}

static int vc_open(struct vc_driver *driver, const char *path)
{
	void *library = dlopen(*path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

	if (library == NULL)
		return vc_fail("cannot open the CUDA driver", dlerror());
	if (vc_find(library, "cuInit", &driver->init) ||
	    vc_find(library, "cuDeviceGetCount", &driver->count) ||
	    vc_find(library, "cuDeviceGet", &driver->get) ||
	    vc_find(library, "cuDevicePrimaryCtxRetain", &driver->retain) ||
	    vc_find(library, "cuGetErrorName", &driver->error_name))
		return -1;
	// For a MIG device, cuDeviceGetUuid returns the UUID of the device's GPU. Drivers before CUDA
	// 11.4 have only cuDeviceGetUuid.
	if (dlsym(library, "cuDeviceGetUuid_v2") != NULL)
		return vc_find(library, "cuDeviceGetUuid_v2", &driver->uuid);
	return vc_find(library, "cuDeviceGetUuid", &driver->uuid);
}

// vc_is reports whether a UUID equals a text such as "GPU-…" or "MIG-…".
static int vc_is(const struct vc_uuid *uuid, const char *text)
{
	char hex[40] = "";
	const unsigned char *b = uuid->bytes;
	int at = 0;

	for (int i = 0; i < 16; i++)
		at += snprintf(hex + at, sizeof hex - (size_t)at,
			       i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", b[i]);
	return strlen(text) > 4 && strcasecmp(text + 4, hex) == 0;
}

static int vc_hold(const struct vc_driver *driver, const char *wanted)
{
	int count = 0;

	if (vc_check(driver, "cuInit", driver->init(0)) ||
	    vc_check(driver, "cuDeviceGetCount", driver->count(&count)))
		return -1;
	for (int i = 0; i < count; i++) {
		struct vc_uuid uuid;
		void *context = NULL;
		vc_device device = 0;

		if (vc_check(driver, "cuDeviceGet", driver->get(&device, i)) ||
		    vc_check(driver, "cuDeviceGetUuid", driver->uuid(&uuid, device)))
			return -1;
		if (vc_is(&uuid, wanted))
			return vc_check(driver, "cuDevicePrimaryCtxRetain",
					driver->retain(&context, device));
	}
	return vc_fail("CUDA does not show this GPU", wanted);
}

int main(int argc, char **argv)
{
	struct vc_driver driver;
	char ignored[64];

	if (argc != 3) {
		fprintf(stderr, "usage: vgpu-context LIBRARY UUID\n");
		return 2;
	}
	alarm(vc_longest);
	if (vc_open(&driver, argv[1]) || vc_hold(&driver, argv[2]))
		return EXIT_FAILURE;
	puts("ready");
	if (fflush(stdout) != 0)
		return EXIT_FAILURE;
	while (read(STDIN_FILENO, ignored, sizeof ignored) > 0)
		;
	return EXIT_SUCCESS;
}

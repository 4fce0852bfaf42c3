// SPDX-License-Identifier: Apache-2.0
/*
 * This file simulates the driver's lock during code loading, and the wait for work. The file also
 * implements the size that an image states, and the library that the driver opens.
 */
#include "module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void sim_load_begin(struct sim_context *context)
{
	if (!sim.handle.state->driver.load_waits)
		return;
	pthread_mutex_lock(&context->loading);
	sim_wait_context(context);
}

void sim_load_end(struct sim_context *context)
{
	if (sim.handle.state->driver.load_waits)
		pthread_mutex_unlock(&context->loading);
}

static CUresult load_code(struct sim_module *module, struct sim_context *context)
{
	uint64_t bytes;
	CUresult err = CUDA_SUCCESS;

	sim_load_begin(context);
	sim_lock();
	bytes = module->unloaded;
	if (bytes)
		err = sim_charge(module->device, bytes);
	if (!err) {
		module->charged += bytes;
		__atomic_store_n(&module->unloaded, 0, __ATOMIC_RELEASE);
	}
	sim_unlock();
	sim_load_end(context);
	return err;
}

CUresult sim_module_use(struct sim_module *module)
{
	struct sim_context *context = module->context;

	if (!__atomic_load_n(&module->unloaded, __ATOMIC_ACQUIRE))
		return CUDA_SUCCESS;
	if (!context && sim_current(&context))
		return CUDA_SUCCESS; /* a thread with a context loads the library later */
	return load_code(module, context);
}

/* ---- stated sizes ---- */

#define FATBIN_WRAPPER_MAGIC 0x466243b1U
#define FATBIN_MAGIC 0xba55ed50U
#define FATBIN_LZ4 UINT64_C(0x2000)
#define FATBIN_ZSTD UINT64_C(0x8000)
#define FATBIN_CUBIN 2

struct fatbin_wrapper {
	uint32_t magic, version;
	const void *data;
	const void *unused;
};

struct fatbin_header {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size;
};

struct fatbin_entry {
	uint16_t kind, unknown;
	uint32_t header_size;
	uint64_t size;
	uint32_t compressed_size, options_offset;
	uint16_t minor, major;
	uint32_t arch, object_name_offset, object_name_size;
	uint64_t flags, zero, uncompressed_size;
};

/* stated_by_fatbin returns the stated size of the first compressed part of machine code, because
 * the driver loads only one part. */
static uint64_t stated_by_fatbin(const struct fatbin_header *header)
{
	const char *at = (const char *)header + header->header_size;
	const char *end = at + header->size;

	while (at + sizeof(struct fatbin_entry) <= end) {
		struct fatbin_entry entry;

		memcpy(&entry, at, sizeof(entry));
		if (entry.kind == FATBIN_CUBIN && entry.flags & (FATBIN_LZ4 | FATBIN_ZSTD))
			return entry.uncompressed_size;
		if (entry.header_size == 0 || (uint64_t)(end - at) < entry.header_size ||
		    (uint64_t)(end - at) - entry.header_size < entry.size)
			break;
		at += entry.header_size + entry.size;
	}
	return 0;
}

uint64_t sim_image_stated(const void *image)
{
	uint32_t magic;

	memcpy(&magic, image, sizeof(magic));
	if (magic == FATBIN_WRAPPER_MAGIC)
		return stated_by_fatbin(((const struct fatbin_wrapper *)image)->data);
	return magic == FATBIN_MAGIC ? stated_by_fatbin(image) : 0;
}

/* ---- the driver's constructor library ---- */

void sim_open_constructor(void)
{
	static bool opened;
	const char *path = sim.handle.state->driver.constructor;

	if (!*path || __atomic_exchange_n(&opened, true, __ATOMIC_SEQ_CST))
		return;
	if (!dlopen(path, RTLD_NOW | RTLD_LOCAL))
		fprintf(stderr, "gpusim: %s\n", dlerror());
}

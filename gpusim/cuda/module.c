// SPDX-License-Identifier: Apache-2.0
/* This file implements modules loaded from PTX text. */
#include "jit.h"
#include "module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE_MAGIC 0x4d4f4455U
#define FUNCTION_MAGIC 0x46554e43U
#define FATBIN_WRAPPER_MAGIC 0x466243b1U
#define FATBIN_MAGIC 0xba55ed50U

CUresult sim_module_of(CUmodule handle, struct sim_module **module)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle || handle->magic != MODULE_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	*module = handle;
	return CUDA_SUCCESS;
}

CUresult sim_function_of(CUfunction handle, struct sim_function **function)
{
	if (!handle || handle->magic != FUNCTION_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	*function = handle;
	return CUDA_SUCCESS;
}

CUresult sim_module_function(struct sim_module *module, const char *name,
			     struct sim_function **function)
{
	for (size_t i = 0; i < module->ptx.entry_count; i++) {
		if (strcmp(module->ptx.entries[i].name, name) != 0)
			continue;
		*function = &module->functions[i];
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

/* ---- images ---- */

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
	uint16_t kind, unknown; /* kind 1: PTX */
	uint32_t header_size;
	uint64_t size;
	uint32_t compressed_size, options_offset;
	uint16_t minor, major;
	uint32_t arch, object_name_offset, object_name_size;
	uint64_t flags, zero, uncompressed_size;
};

#define FATBIN_COMPRESSED UINT64_C(0xa000) /* by LZ4 or zstd */

/* from_fatbin returns a copy of the first uncompressed PTX of a fat binary. */
static CUresult from_fatbin(const struct fatbin_header *header, char **text)
{
	const char *at = (const char *)header + header->header_size;
	const char *end = at + header->size;

	while (at + sizeof(struct fatbin_entry) <= end) {
		struct fatbin_entry entry;

		memcpy(&entry, at, sizeof(entry));
		at += entry.header_size;
		if (entry.kind == 1 && !(entry.flags & FATBIN_COMPRESSED)) {
			*text = strndup(at, entry.size);
			return *text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
		}
		if (entry.header_size == 0 || (uint64_t)(end - at) < entry.size)
			break;
		at += entry.size;
	}
	if (sim_image_stated(header)) { /* of machine code only the size is known */
		*text = strdup(".version 7.0\n.target sm_50\n.address_size 64\n");
		return *text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult sim_image_text(const void *image, char **text)
{
	uint32_t magic;

	if (memcmp(image, "\177ELF", 4) == 0)
		return sim_cubin_text(image, text);
	memcpy(&magic, image, sizeof(magic));
	if (magic == FATBIN_WRAPPER_MAGIC)
		return from_fatbin(((const struct fatbin_wrapper *)image)->data, text);
	if (magic == FATBIN_MAGIC)
		return from_fatbin(image, text);
	*text = strdup(image);
	return *text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- loading ---- */

static uint64_t module_bytes(const struct sim_module *module, uint64_t granularity)
{
	return round_up(ptx_global_bytes(&module->ptx), granularity);
}

static CUresult place_globals(struct sim_module *module)
{
	module->globals = calloc(module->ptx.global_count + 1, sizeof(*module->globals));
	if (!module->globals)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < module->ptx.global_count; i++) {
		struct sim_alloc *alloc;

		sim_lock();
		/* The memory is charged to the module, not to the address. */
		alloc = sim_alloc_new(ALLOC_IMPORT, module->ptx.globals[i].size, 0);
		if (alloc) {
			alloc->device = module->device;
			module->globals[i] = alloc->address;
		}
		sim_unlock();
		if (!alloc)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

static CUdeviceptr global_address(const struct sim_module *module, const char *name)
{
	for (size_t i = 0; i < module->ptx.global_count; i++)
		if (strcmp(module->ptx.globals[i].name, name) == 0)
			return module->globals[i];
	return 0; /* a function's name */
}

/* fill_globals writes initial content as far as the simulator has room for the content. */
static void fill_globals(const struct sim_module *module)
{
	for (size_t i = 0; i < module->ptx.global_count; i++) {
		const struct ptx_global *global = &module->ptx.globals[i];
		uint64_t size = global->data.size < global->size ? global->data.size : global->size;
		char *content;

		sim_lock();
		content = size ? sim_content(module->globals[i], size) : NULL;
		sim_unlock();
		if (!content)
			continue;
		memcpy(content, global->data.bytes, size);
		for (size_t a = 0; a < global->data.address_count; a++) {
			const struct ptx_address *at = &global->data.addresses[a];
			CUdeviceptr value = global_address(module, at->name) + (CUdeviceptr)at->addend;

			if (at->offset + sizeof(value) <= size)
				memcpy(content + at->offset, &value, sizeof(value));
		}
	}
}

static uint64_t code_bytes(const struct sim_module *module, uint64_t granularity)
{
	return round_up(module->stated ? module->stated : module->ptx.length, granularity);
}

CUresult sim_module_charge(struct sim_module *module, struct sim_context *context)
{
	struct sim_device *device = context->device;
	bool lazy = sim.handle.state->driver.lazy_loading != 0;
	uint64_t granularity = sim_gpu(device)->alloc_granularity;
	uint64_t bytes = module_bytes(module, granularity);
	uint64_t code = code_bytes(module, granularity);
	CUresult err;

	if (lazy)
		module->unloaded = code;
	else
		sim_load_begin(context);
	err = sim_charge(device, bytes + (lazy ? 0 : code));
	if (!lazy)
		sim_load_end(context);
	if (err)
		return err;
	module->device = device;
	module->charged = bytes + (lazy ? 0 : code);
	err = place_globals(module);
	if (!err)
		fill_globals(module);
	return err;
}

static CUresult make_functions(struct sim_module *module)
{
	module->functions = calloc(module->ptx.entry_count + 1, sizeof(*module->functions));
	if (!module->functions)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (size_t i = 0; i < module->ptx.entry_count; i++) {
		module->functions[i].magic = FUNCTION_MAGIC;
		module->functions[i].module = module;
		module->functions[i].entry = &module->ptx.entries[i];
		module->functions[i].block[0] = module->functions[i].block[1] =
			module->functions[i].block[2] = 1;
	}
	return CUDA_SUCCESS;
}

void sim_module_free(struct sim_module *module)
{
	struct sim_module **link;

	sim_lock();
	if (module->context) {
		for (link = &module->context->modules; *link && *link != module; link = &(*link)->next)
			;
		if (*link)
			*link = module->next;
	}
	for (size_t i = 0; module->globals && i < module->ptx.global_count; i++) {
		struct sim_alloc *alloc = sim_alloc_exact(module->globals[i]);

		if (module->globals[i] && alloc)
			sim_alloc_drop(alloc);
	}
	sim_unlock();
	if (module->charged)
		sim_uncharge(module->device, module->charged);
	ptx_free(&module->ptx);
	free(module->globals);
	free(module->functions);
	module->magic = 0;
	free(module);
}

/*
 * read_image reads the image's text. read_image fails if the text uses an undefined name.
 */
static CUresult read_image(const void *image, struct ptx *ptx, char log[SIM_LOG_SIZE])
{
	char *text = NULL;
	CUresult err = sim_image_text(image, &text);

	if (err)
		return err;
	err = ptx_parse(text, ptx);
	free(text);
	if (err)
		snprintf(log, SIM_LOG_SIZE, "ptxas application ptx input: fatal   : Parsing error");
	else
		err = ptx_check_symbols(ptx, log, SIM_LOG_SIZE);
	return err;
}

CUresult sim_module_load(struct sim_context *context, const void *image, const struct sim_jit *jit,
			 struct sim_module **out)
{
	char log[SIM_LOG_SIZE] = "";
	struct sim_module *module;
	CUresult err;

	module = calloc(1, sizeof(*module));
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->magic = MODULE_MAGIC;
	module->stated = sim_image_stated(image);
	err = read_image(image, &module->ptx, log);
	sim_jit_report(jit, "", log);
	if (!err)
		err = make_functions(module);
	if (!err && context)
		err = sim_module_charge(module, context);
	if (err) {
		sim_module_free(module);
		return err;
	}
	if (context) {
		sim_lock();
		module->context = context;
		module->next = context->modules;
		context->modules = module;
		sim_unlock();
	}
	*out = module;
	return CUDA_SUCCESS;
}

static CUresult load_module(CUmodule *out, const void *image, const struct sim_jit *jit)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (!err)
		err = sim_capture_guard();
	if (err)
		return err;
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_module_load(context, image, jit, out);
}

CU_API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return load_module(out, image, &sim_no_jit);
}

CU_API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options,
				   void **values)
{
	struct sim_jit jit;
	CUresult err = sim_jit_read(&jit, count, options, values);

	return err ? err : load_module(out, image, &jit);
}

CU_API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	return load_module(out, image, &sim_no_jit);
}

CU_API CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	char *image;
	CUresult err = path ? sim_read_file(path, &image, NULL) : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	err = load_module(out, image, &sim_no_jit);
	free(image);
	return err;
}

CU_API CUresult cuModuleUnload(CUmodule handle)
{
	struct sim_module *module;
	CUresult err = sim_module_of(handle, &module);

	if (!err && !module->context)
		err = CUDA_ERROR_INVALID_HANDLE;
	if (err)
		return err;
	sim_wait_context(module->context);
	sim_module_free(module);
	return CUDA_SUCCESS;
}

CU_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
	struct sim_module *module;
	CUresult err = sim_module_of(handle, &module);

	if (err)
		return err;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	err = sim_module_function(module, name, out);
	return err ? err : sim_module_use(module);
}

/* ---- global variables ---- */

CUresult sim_module_global(const struct sim_module *module, const char *name, CUdeviceptr *address,
			   size_t *size)
{
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < module->ptx.global_count; i++) {
		if (strcmp(module->ptx.globals[i].name, name) != 0)
			continue;
		if (address)
			*address = module->globals[i];
		if (size)
			*size = module->ptx.globals[i].size;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

CU_API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, CUmodule handle,
				     const char *name)
{
	struct sim_module *module;
	CUresult err = sim_module_of(handle, &module);

	return err ? err : sim_module_global(module, name, address, size);
}

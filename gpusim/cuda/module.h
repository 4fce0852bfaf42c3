// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_MODULE_H
#define GPUSIM_MODULE_H

#include "sim.h"

/* sim_module is a module or, without a context, a library. */
struct sim_module {
	struct sim_module *next;
	uint32_t magic;
	struct sim_context *context; /* NULL: a library, which is charged at first use */
	struct sim_device *device;
	struct ptx ptx;
	struct sim_function *functions; /* a function for each entry */
	CUdeviceptr *globals;           /* an address for each global variable */
	uint64_t charged;
	uint64_t stated; /* machine code bytes that a compressed image states; 0: from the text */
	uint64_t unloaded; /* bytes of code that the first use of a function loads */
};

/* sim_module_use loads the module's code if loading was deferred to the first use. */
CUresult sim_module_use(struct sim_module *module);

CUresult cuLibraryGetModule(CUmodule *out, CUlibrary library);

/* sim_module_load loads an image into a context or, with NULL, as a library. */
struct sim_jit;
CUresult sim_module_load(struct sim_context *context, const void *image, const struct sim_jit *jit,
			 struct sim_module **module);
/* sim_module_charge charges a module's code and variables to a context, and assigns addresses. */
CUresult sim_module_charge(struct sim_module *module, struct sim_context *context);

/* sim_module_global returns the address and size of a variable. Either pointer may be NULL. */
CUresult sim_module_global(const struct sim_module *module, const char *name, CUdeviceptr *address,
			   size_t *size);

/* sim_image_text returns a copy of the PTX text in an image. */
CUresult sim_image_text(const void *image, char **text);

/* sim_cubin_text returns a copy of the PTX text in an ELF image from the linker (cubin.c). */
CUresult sim_cubin_text(const void *image, char **text);
/* sim_cubin_new creates an image from a text and the size of its variables. */
CUresult sim_cubin_new(const char *text, uint64_t global_bytes, void **image, size_t *size);

/* sim_read_file reads a file's content and adds a zero byte. */
CUresult sim_read_file(const char *path, char **content, size_t *size);

CUresult sim_module_of(CUmodule handle, struct sim_module **module);
CUresult sim_module_function(struct sim_module *module, const char *name,
			     struct sim_function **function);

#endif

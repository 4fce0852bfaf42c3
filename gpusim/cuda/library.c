// SPDX-License-Identifier: Apache-2.0
/* This file implements libraries: modules without a context. */
#include "jit.h"
#include "module.h"

#include <stdlib.h>

static CUresult use_library(struct sim_module *library);

/* load_eagerly loads a library into the current context if lazy loading is off. */
static CUresult load_eagerly(CUlibrary *out)
{
	struct sim_context *context;
	CUresult err;

	if (!sim.handle.state->driver.load_waits || sim.handle.state->driver.lazy_loading ||
	    sim_current(&context))
		return CUDA_SUCCESS;
	err = use_library(*out);
	if (err)
		sim_module_free(*out);
	return err;
}

CU_API CUresult cuLibraryLoadData(CUlibrary *out, const void *code, int *jit_options,
				  void **jit_values, unsigned jit_count, int *options, void **values,
				  unsigned count)
{
	struct sim_jit jit;
	CUresult err = sim_ready();

	(void)options, (void)values, (void)count;
	if (!err)
		err = sim_jit_read(&jit, jit_count, jit_options, jit_values);
	if (err)
		return err;
	if (!out || !code)
		return CUDA_ERROR_INVALID_VALUE;
	err = sim_module_load(NULL, code, &jit, out);
	return err ? err : load_eagerly(out);
}

CU_API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit_options,
				      void **jit_values, unsigned jit_count, int *options,
				      void **values, unsigned count)
{
	char *image;
	CUresult err = path ? sim_read_file(path, &image, NULL) : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	err = cuLibraryLoadData(out, image, jit_options, jit_values, jit_count, options, values, count);
	free(image);
	return err;
}

CU_API CUresult cuLibraryUnload(CUlibrary handle)
{
	struct sim_module *module;
	CUresult err = sim_module_of(handle, &module);

	if (err)
		return err;
	sim_module_free(module);
	return CUDA_SUCCESS;
}

/* use_library loads a library onto a device when the program first uses the library on the device.
 */
static CUresult use_library(struct sim_module *library)
{
	struct sim_context *context;
	CUresult err = sim_current(&context);

	if (err || library->device)
		return err;
	return sim_module_charge(library, context);
}

CU_API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary handle)
{
	struct sim_module *module;
	CUresult err = sim_module_of(handle, &module);

	if (!err && !out)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err)
		err = use_library(module);
	if (!err)
		*out = module;
	return err;
}

CU_API CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name)
{
	struct sim_module *module;
	CUresult err = sim_module_of(handle, &module);

	if (err)
		return err;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_module_function(module, name, out);
}

CU_API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, CUlibrary handle,
				   const char *name)
{
	struct sim_module *module;
	CUresult err = sim_module_of(handle, &module);

	if (!err)
		err = use_library(module);
	return err ? err : sim_module_global(module, name, address, size);
}

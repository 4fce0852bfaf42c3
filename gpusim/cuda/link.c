// SPDX-License-Identifier: Apache-2.0
/* This file implements the linker, which joins PTX texts, and images with PTX text, into one image.
 */
#include "jit.h"
#include "module.h"

#include <stdlib.h>
#include <string.h>

#define LINK_MAGIC 0x4c494e4bU

enum {
	INPUT_CUBIN = 0,
	INPUT_PTX = 1,
	INPUT_FATBINARY = 2,
	INPUT_OBJECT = 3,
	INPUT_LIBRARY = 4,
	INPUT_NVVM = 5,
};

struct sim_link {
	uint32_t magic;
	struct sim_jit jit;
	char *text; /* all added text */
	size_t length;
	void *image; /* set when the image is complete */
	size_t image_size;
};

static CUresult link_of(CUlinkState handle, struct sim_link **link)
{
	CUresult err = sim_ready();

	if (err)
		return err;
	if (!handle || handle->magic != LINK_MAGIC)
		return CUDA_ERROR_INVALID_HANDLE;
	*link = handle;
	return CUDA_SUCCESS;
}

CU_API CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, CUlinkState *out)
{
	struct sim_context *context;
	struct sim_link *link;
	struct sim_jit jit;
	CUresult err = sim_current(&context);

	if (!err)
		err = out ? sim_jit_read(&jit, count, options, values) : CUDA_ERROR_INVALID_VALUE;
	if (err)
		return err;
	link = calloc(1, sizeof(*link));
	if (!link)
		return CUDA_ERROR_OUT_OF_MEMORY;
	link->magic = LINK_MAGIC;
	link->jit = jit;
	*out = link;
	return CUDA_SUCCESS;
}

/* input_text returns a copy of the input's text. */
static CUresult input_text(int type, const void *data, size_t size, char **text)
{
	switch (type) {
	case INPUT_PTX:
		*text = strndup(data, size);
		return *text ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	case INPUT_CUBIN:
	case INPUT_FATBINARY:
		if (size < 64) /* an ELF file or fat binary is longer */
			return CUDA_ERROR_INVALID_IMAGE;
		return sim_image_text(data, text);
	case INPUT_OBJECT:
	case INPUT_LIBRARY:
	case INPUT_NVVM:
		return CUDA_ERROR_INVALID_IMAGE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult append(struct sim_link *link, const char *text)
{
	size_t length = strlen(text);
	char *grown = realloc(link->text, link->length + length + 2);

	if (!grown)
		return CUDA_ERROR_OUT_OF_MEMORY;
	link->text = grown;
	memcpy(grown + link->length, text, length);
	link->length += length + 1;
	memcpy(grown + link->length - 1, "\n", 2);
	return CUDA_SUCCESS;
}

static CUresult add(struct sim_link *link, int type, const void *data, size_t size)
{
	struct ptx ptx;
	char *text = NULL;
	CUresult err = input_text(type, data, size, &text);

	if (err)
		return err;
	err = ptx_parse(text, &ptx);
	if (err)
		sim_jit_report(&link->jit, "", "ptxas application ptx input: fatal   : Parsing error");
	else
		ptx_free(&ptx);
	if (!err)
		err = append(link, text);
	free(text);
	return err;
}

CU_API CUresult cuLinkAddData_v2(CUlinkState handle, int type, void *data, size_t size,
				 const char *name, unsigned count, int *options, void **values)
{
	struct sim_link *link;
	struct sim_jit jit;
	CUresult err = link_of(handle, &link);

	(void)name;
	if (!err)
		err = sim_jit_read(&jit, count, options, values);
	if (err)
		return err;
	if (!data || !size || link->image)
		return CUDA_ERROR_INVALID_VALUE;
	return add(link, type, data, size);
}

CU_API CUresult cuLinkAddFile_v2(CUlinkState handle, int type, const char *path, unsigned count,
				 int *options, void **values)
{
	struct sim_link *link;
	char *content;
	size_t size;
	CUresult err = link_of(handle, &link);

	if (err)
		return err;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	err = sim_read_file(path, &content, &size);
	if (err)
		return err;
	err = cuLinkAddData_v2(handle, type, content, size, path, count, options, values);
	free(content);
	return err;
}

static CUresult complete(struct sim_link *link)
{
	char log[SIM_LOG_SIZE] = "";
	struct ptx ptx;
	CUresult err = link->text ? ptx_parse(link->text, &ptx) : CUDA_ERROR_INVALID_VALUE;

	if (err)
		return err;
	err = ptx_check_symbols(&ptx, log, sizeof(log));
	if (!err)
		err = sim_cubin_new(link->text, ptx_global_bytes(&ptx), &link->image, &link->image_size);
	ptx_free(&ptx);
	sim_jit_report(&link->jit, "", log);
	return err;
}

CU_API CUresult cuLinkComplete(CUlinkState handle, void **image, size_t *size)
{
	struct sim_link *link;
	CUresult err = link_of(handle, &link);

	if (!err && !image)
		err = CUDA_ERROR_INVALID_VALUE;
	if (!err && !link->image)
		err = complete(link);
	if (err)
		return err;
	*image = link->image;
	if (size)
		*size = link->image_size;
	return CUDA_SUCCESS;
}

CU_API CUresult cuLinkDestroy(CUlinkState handle)
{
	struct sim_link *link;
	CUresult err = link_of(handle, &link);

	if (err)
		return err;
	link->magic = 0;
	free(link->text);
	free(link->image);
	free(link);
	return CUDA_SUCCESS;
}

/* The first versions of the calls only have fewer options. */

CU_API CUresult cuLinkCreate(unsigned count, int *options, void **values, CUlinkState *out)
{
	return cuLinkCreate_v2(count, options, values, out);
}

CU_API CUresult cuLinkAddData(CUlinkState handle, int type, void *data, size_t size,
			      const char *name, unsigned count, int *options, void **values)
{
	return cuLinkAddData_v2(handle, type, data, size, name, count, options, values);
}

CU_API CUresult cuLinkAddFile(CUlinkState handle, int type, const char *path, unsigned count,
			      int *options, void **values)
{
	return cuLinkAddFile_v2(handle, type, path, count, options, values);
}

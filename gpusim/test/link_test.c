// SPDX-License-Identifier: Apache-2.0
/* This test covers the linker, and PTX as compilers emit it: names, initial content, errors. */
#include "harness.h"

#include <elf.h>
#include <string.h>
#include <unistd.h>

#define HEAD ".version 6.0\n.target sm_30\n.address_size 64\n"

enum { CUBIN = 0, PTX = 1, OBJECT = 3 };
enum { WALL_TIME = 2, INFO_LOG = 3, INFO_BYTES = 4, ERROR_LOG = 5, ERROR_BYTES = 6 };

/* caller is the output of gcc's back end: declarations first, then definitions. */
static const char caller[] = HEAD
	"// BEGIN GLOBAL FUNCTION DECL: helper\n"
	".extern .func (.param .u32 %value_out) helper (.param .u32 %in_ar0);\n"
	".extern .func nobody (.param .u64 %in_ar0);\n" /* no code calls the function */
	".extern .func (.param .u64 %out) malloc (.param .u64 %in);\n"
	".extern .shared .u64 stacks[32];\n"
	".extern .shared .align 8 .u8 dynamic[];\n"
	".extern .global .align 4 .u32 shared_counter[1];\n"
	".const .align 1 .u8 $LC0[3] = {104,105,0 };\n"
	".visible .global .align 8 .u64 pointers[3] = {generic($LC0),generic(shared_counter)+4,-1 };\n"
	".visible .global .align 8 .f64 reals[2] = {0d3FF8000000000000, 2.5 };\n"
	".weak .global .align 4 .u32 everyone[2] = {7,8 };\n"
	".visible .entry main$_omp_fn$0 (.param .u64 %arg, .param .u64 %stack)\n"
	"{\n.reg .u64 %R0;\nmov.u64 %R0,stacks;\nld.global.u32 %r0,[shared_counter];\n"
	"{\ncall.uni (%v),malloc,(%x);\ncall (%value_in),helper,(%out_arg1);\n}\nret;\n}\n";

static const char helper[] = HEAD
	".visible .func (.param .u32 %value_out) helper (.param .u32 %in_ar0);\n"
	".visible .shared .u64 stacks[32];\n"
	".visible .global .align 4 .u32 shared_counter[2] = {5,6 };\n"
	".const .align 1 .u8 $LC0[2] = {120,0 };\n"
	".weak .global .align 4 .u32 everyone[2] = {7,8 };\n"
	".visible .func (.param .u32 %value_out) helper (.param .u32 %in_ar0)\n{\nret;\n}\n";

static CUresult add_text(CUlinkState link, const char *text)
{
	DRIVER(cuLinkAddData_v2, CUlinkState, int, void *, size_t, const char *, unsigned, int *, void **);
	char copy[4096];

	snprintf(copy, sizeof(copy), "%s", text);
	return cuLinkAddData_v2(link, PTX, copy, strlen(copy) + 1, "text", 0, NULL, NULL);
}

static void content_of(CUmodule module, const char *name, void *out, size_t size)
{
	DRIVER(cuModuleGetGlobal_v2, CUdeviceptr *, size_t *, CUmodule, const char *);
	DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t);
	CUdeviceptr address;
	size_t bytes;

	OK(cuModuleGetGlobal_v2(&address, &bytes, module, name));
	CHECK(bytes == size);
	OK(cuMemcpyDtoH_v2(out, address, size));
}

static void check_content(CUmodule module)
{
	DRIVER(cuModuleGetGlobal_v2, CUdeviceptr *, size_t *, CUmodule, const char *);
	DRIVER(cuMemcpyDtoH_v2, void *, CUdeviceptr, size_t);
	unsigned counter[2], everyone[2];
	CUdeviceptr pointers[3], address;
	double reals[2];
	char text[3];

	content_of(module, "shared_counter", counter, sizeof(counter));
	CHECK(counter[0] == 5 && counter[1] == 6);
	content_of(module, "everyone", everyone, sizeof(everyone));
	CHECK(everyone[0] == 7 && everyone[1] == 8);
	content_of(module, "reals", reals, sizeof(reals));
	CHECK(reals[0] > 1.49 && reals[0] < 1.51 && reals[1] > 2.49 && reals[1] < 2.51);
	content_of(module, "pointers", pointers, sizeof(pointers));
	OK(cuModuleGetGlobal_v2(&address, NULL, module, "shared_counter"));
	CHECK(pointers[1] == address + 4 && pointers[2] == ~0ull);
	OK(cuMemcpyDtoH_v2(text, pointers[0], sizeof(text)));
	CHECK(strcmp(text, "hi") == 0);
}

/* stated_bytes returns the size of the image's sections that take memory, from its ELF headers. */
static uint64_t stated_bytes(const void *image, size_t size)
{
	Elf64_Ehdr head;
	uint64_t sum = 0;

	CHECK(size > sizeof(head));
	memcpy(&head, image, sizeof(head));
	CHECK(memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 && head.e_machine == EM_CUDA);
	CHECK(head.e_shoff + (uint64_t)head.e_shnum * head.e_shentsize == size);
	for (unsigned i = 0; i < head.e_shnum; i++) {
		Elf64_Shdr section;

		memcpy(&section, (const char *)image + head.e_shoff + i * sizeof(section), sizeof(section));
		if (section.sh_flags & SHF_ALLOC)
			sum += (section.sh_size + 511) / 512 * 512;
	}
	return sum;
}

static void links(void)
{
	DRIVER(cuLinkCreate_v2, unsigned, int *, void **, CUlinkState *);
	DRIVER(cuLinkComplete, CUlinkState, void **, size_t *);
	DRIVER(cuLinkDestroy, CUlinkState);
	DRIVER(cuModuleLoadData, CUmodule *, const void *);
	DRIVER(cuModuleGetFunction, CUfunction *, CUmodule, const char *);
	DRIVER(cuModuleUnload, CUmodule);
	uint64_t before = physical(getpid(), 0);
	CUlinkState link;
	CUmodule module;
	CUfunction function;
	void *image;
	size_t size;

	OK(cuLinkCreate_v2(0, NULL, NULL, &link));
	OK(add_text(link, caller));
	OK(add_text(link, helper));
	OK(cuLinkComplete(link, &image, &size));
	CHECK(add_text(link, helper) == CUDA_ERROR_INVALID_VALUE);
	OK(cuModuleLoadData(&module, image));
	CHECK(physical(getpid(), 0) > before);
	CHECK(physical(getpid(), 0) <= before + stated_bytes(image, size));
	OK(cuLinkDestroy(link));
	OK(cuModuleGetFunction(&function, module, "main$_omp_fn$0"));
	CHECK(cuModuleGetFunction(&function, module, "helper") == CUDA_ERROR_NOT_FOUND);
	check_content(module);
	OK(cuModuleUnload(module));
	CHECK(physical(getpid(), 0) == before);
}

/* images checks that an image can be linked again, and can be loaded from a file. */
static void images(void)
{
	DRIVER(cuLinkCreate_v2, unsigned, int *, void **, CUlinkState *);
	DRIVER(cuLinkAddFile_v2, CUlinkState, int, const char *, unsigned, int *, void **);
	DRIVER(cuLinkComplete, CUlinkState, void **, size_t *);
	DRIVER(cuLinkDestroy, CUlinkState);
	DRIVER(cuModuleLoad, CUmodule *, const char *);
	DRIVER(cuModuleUnload, CUmodule);
	char path[] = "/tmp/gpusim-link-XXXXXX";
	CUlinkState first, second;
	CUmodule module;
	void *image;
	size_t size;
	int fd = mkstemp(path);

	OK(cuLinkCreate_v2(0, NULL, NULL, &first));
	OK(add_text(first, helper));
	OK(cuLinkComplete(first, &image, &size));
	CHECK(fd >= 0 && write(fd, image, size) == (ssize_t)size);
	OK(cuLinkDestroy(first));
	OK(cuLinkCreate_v2(0, NULL, NULL, &second));
	OK(add_text(second, caller));
	OK(cuLinkAddFile_v2(second, CUBIN, path, 0, NULL, NULL));
	CHECK(cuLinkAddFile_v2(second, PTX, "/nonexistent", 0, NULL, NULL) == CUDA_ERROR_FILE_NOT_FOUND);
	CHECK(cuLinkAddFile_v2(second, OBJECT, path, 0, NULL, NULL) == CUDA_ERROR_INVALID_IMAGE);
	OK(cuLinkComplete(second, &image, &size));
	CHECK(pwrite(fd, image, size, 0) == (ssize_t)size);
	OK(cuLinkDestroy(second));
	OK(cuModuleLoad(&module, path));
	check_content(module);
	OK(cuModuleUnload(module));
	close(fd);
	unlink(path);
}

static void errors(void)
{
	DRIVER(cuLinkCreate_v2, unsigned, int *, void **, CUlinkState *);
	DRIVER(cuLinkComplete, CUlinkState, void **, size_t *);
	DRIVER(cuLinkDestroy, CUlinkState);
	DRIVER(cuModuleLoadDataEx, CUmodule *, const void *, unsigned, int *, void **);
	char info[64] = "?", error[64];
	int options[] = {WALL_TIME, INFO_LOG, INFO_BYTES, ERROR_LOG, ERROR_BYTES};
	void *values[] = {(void *)-1, info, (void *)sizeof(info), error, (void *)sizeof(error)};
	CUlinkState link;
	CUmodule module;
	void *image;
	float ms;

	CHECK(cuLinkDestroy(NULL) == CUDA_ERROR_INVALID_HANDLE);
	OK(cuLinkCreate_v2(5, options, values, &link));
	CHECK(cuLinkComplete(link, &image, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(add_text(link, "no PTX") == CUDA_ERROR_INVALID_PTX);
	CHECK(strstr(error, "Parsing error") && (size_t)values[4] == strlen(error));
	OK(add_text(link, caller));
	CHECK(cuLinkComplete(link, &image, NULL) == CUDA_ERROR_NO_BINARY_FOR_GPU);
	CHECK(strstr(error, "Undefined reference to 'helper'") && info[0] == 0 && values[2] == NULL);
	memcpy(&ms, &values[0], sizeof(ms));
	CHECK(ms >= 0 && ms < 60000);
	OK(add_text(link, helper));
	OK(add_text(link, helper));
	CHECK(cuLinkComplete(link, &image, NULL) == CUDA_ERROR_NO_BINARY_FOR_GPU);
	CHECK(strstr(error, "Multiple definition of '"));
	OK(cuLinkDestroy(link));
	values[4] = (void *)sizeof(error);
	CHECK(cuModuleLoadDataEx(&module, caller, 2, options + 3, values + 3) == CUDA_ERROR_NO_BINARY_FOR_GPU);
	CHECK(strstr(error, "Undefined reference"));
	options[0] = 1000;
	CHECK(cuModuleLoadDataEx(&module, helper, 1, options, values) == CUDA_ERROR_INVALID_VALUE);
}

/* ---- streams' host functions ---- */

static CUresult seen[3];

static void in_callback(CUstream stream, CUresult status, void *data)
{
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr);
	DRIVER(cuStreamQuery, CUstream);
	CUdeviceptr base, *memory = data;
	size_t size;

	CHECK(status == CUDA_SUCCESS);
	seen[0] = cuMemGetAddressRange_v2(&base, &size, *memory);
	seen[1] = cuMemFree_v2(*memory);
	seen[2] = cuStreamQuery(stream);
}

/* callbacks checks that a stream's host function may not call the driver. Another thread frees
 * memory for the host function. */
static void callbacks(void)
{
	DRIVER(cuMemAlloc_v2, CUdeviceptr *, size_t);
	DRIVER(cuMemFree_v2, CUdeviceptr);
	DRIVER(cuStreamCreate, CUstream *, unsigned);
	DRIVER(cuStreamDestroy_v2, CUstream);
	DRIVER(cuStreamSynchronize, CUstream);
	DRIVER(cuStreamAddCallback, CUstream, CUstreamCallback, void *, unsigned);
	CUdeviceptr memory;
	CUstream stream;

	OK(cuMemAlloc_v2(&memory, MIB));
	OK(cuStreamCreate(&stream, 0));
	OK(cuStreamAddCallback(stream, in_callback, &memory, 0));
	OK(cuStreamSynchronize(stream));
	for (int i = 0; i < 3; i++)
		CHECK(seen[i] == CUDA_ERROR_NOT_PERMITTED);
	OK(cuMemFree_v2(memory));
	OK(cuStreamDestroy_v2(stream));
}

int main(void)
{
	begin();
	links();
	images();
	errors();
	callbacks();
	return 0;
}

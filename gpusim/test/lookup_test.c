// SPDX-License-Identifier: Apache-2.0
/* This test checks that every name exists, and that recorded look-ups of real programs succeed. */
#include "harness.h"

#include <dlfcn.h>
#include <string.h>

static void *library;
static CUresult (*look_up)(const char *, void **, int, cuuint64_t, int *);

static FILE *open_data(const char *name)
{
	char path[512];
	FILE *file;

	CHECK(snprintf(path, sizeof(path), "%s/%s", getenv("GPUSIM_DATA"), name) > 0);
	file = fopen(path, "re");
	CHECK(file);
	return file;
}

/*
 * check_line checks "GPA name version flags rc=0" or "DLSYM name". A look-up may have no name.
 */
static void check_line(const char *line)
{
	char name[128];
	int version;
	unsigned long long flags;
	int rc, status = -1;
	void *symbol;

	if (sscanf(line, "DLSYM %127s", name) == 1) {
		if (strncmp(name, "cu", 2) == 0) /* NVML's names are in another library */
			CHECK(dlsym(library, name));
	} else if (sscanf(line, "GPA %127s %d %llu rc=%d", name, &version, &flags, &rc) == 4) {
		symbol = NULL;
		CHECK(look_up(name, &symbol, version, flags, &status) == rc);
		CHECK(symbol && status == CU_GET_PROC_ADDRESS_SUCCESS);
	} else {
		CHECK(sscanf(line, "GPA %d %llu rc=%d", &version, &flags, &rc) == 3);
		CHECK(look_up("", &symbol, version, flags, &status) == rc);
	}
}

static void recorded(const char *name)
{
	FILE *file = open_data(name);
	char line[256];
	int lines = 0;

	while (fgets(line, sizeof(line), file)) {
		check_line(line);
		lines++;
	}
	fclose(file);
	CHECK(lines > 400);
}

static void exports(void)
{
	FILE *file = open_data("../data/libcuda-exports.txt");
	char name[128];
	int names = 0;

	while (fscanf(file, "%127s", name) == 1) {
		CHECK(dlsym(library, name));
		names++;
	}
	fclose(file);
	CHECK(names == 707);
}

static void *variant(const char *name, int version, cuuint64_t flags)
{
	void *symbol = NULL;
	int status;

	(void)look_up(name, &symbol, version, flags, &status);
	return symbol;
}

static void variants(void)
{
	int status;
	void *symbol;

	CHECK(variant("cuMemAlloc", 2000, 0) == dlsym(library, "cuMemAlloc"));
	CHECK(variant("cuMemAlloc", 13000, 0) == dlsym(library, "cuMemAlloc_v2"));
	CHECK(variant("cuCtxCreate", 13000, 0) == dlsym(library, "cuCtxCreate_v4"));
	CHECK(variant("cuCtxCreate", 11040, 0) == dlsym(library, "cuCtxCreate_v3"));
	CHECK(variant("cuLaunchKernel", 13000, 0) == dlsym(library, "cuLaunchKernel"));
	CHECK(variant("cuLaunchKernel", 13000, 1) == dlsym(library, "cuLaunchKernel"));
	CHECK(variant("cuLaunchKernel", 13000, 2) == dlsym(library, "cuLaunchKernel_ptsz"));
	CHECK(variant("cuMemcpyHtoD", 7000, 2) == dlsym(library, "cuMemcpyHtoD_v2_ptds"));
	CHECK(variant("cuMemAlloc", 13000, 2) == dlsym(library, "cuMemAlloc_v2"));
	CHECK(variant("cuGetProcAddress", 12000, 0) == dlsym(library, "cuGetProcAddress_v2"));
	CHECK(variant("cuGetProcAddress", 11030, 0) == dlsym(library, "cuGetProcAddress"));
	CHECK(look_up("cuNoSuchThing", &symbol, 13000, 0, &status) == CUDA_ERROR_NOT_FOUND);
	CHECK(!symbol && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	CHECK(look_up("cuGraphAddNode", &symbol, 11000, 0, &status) == CUDA_ERROR_NOT_FOUND);
	CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

static void unsimulated(void)
{
	CUresult (*stub)(void *) = (CUresult(*)(void *))driver("cuTexRefCreate");

	CHECK(stub(NULL) == CUDA_ERROR_NOT_SUPPORTED);
}

int main(void)
{
	library = dlopen(getenv("GPUSIM_LIBCUDA"), RTLD_NOW | RTLD_LOCAL);
	CHECK(library);
	look_up = (CUresult(*)(const char *, void **, int, cuuint64_t, int *))driver("cuGetProcAddress_v2");
	exports();
	recorded("cudart-13.0-static-lookups.txt");
	recorded("torch-2.11-lookups.txt");
	variants();
	unsimulated();
	return 0;
}

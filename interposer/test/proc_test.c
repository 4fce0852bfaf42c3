// SPDX-License-Identifier: Apache-2.0

// This test covers cuGetProcAddress, which returns the interposer's function for an exported
// function that the interposer replaces. cuGetProcAddress returns no unknown functions of newer
// drivers that could bypass the limits.

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "api/cu_proc.h"
#include "check.h"
#include "driver/driver.h"
#include "stand_in.h"

CUresult vg_cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
int cuMemAlloc_v2(void);

static void driver_later(void)
{
}

static CUresult driver_address(const char *name, void **function, int version, uint64_t flags, int *status)
{
	void (*later)(void) = driver_later;

	CHECK(name && !version && !flags);
	memcpy(function, &later, sizeof later);
	*status = 0;
	return CUDA_SUCCESS;
}

// is_withheld requests a function by name, and reports whether cuGetProcAddress returned no
// function. Any returned function must be the driver's.
static bool is_withheld(const char *name)
{
	void *found = NULL;
	void (*function)(void) = driver_later;
	int status = -1;
	CUresult result = vg_cuGetProcAddress_v2(name, &found, 0, 0, &status);

	if (result == CUDA_SUCCESS) {
		CHECK(memcmp(&found, &function, sizeof found) == 0);
		CHECK_EQUAL(status, 0);
		return false;
	}
	CHECK_EQUAL(result, CUDA_ERROR_NOT_FOUND);
	CHECK(!found);
	CHECK_EQUAL(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	return true;
}

// Every replaced function is withheld if the driver returns an unknown function. Functions that
// begin and end captures are exceptions, because they allocate no limited resource.
static void test_own(void)
{
	static const char *const names[] = {
#define NAME(symbol) #symbol,
		VG_OWN_SYMBOLS(NAME)
#undef NAME
	};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		CHECK_EQUAL(is_withheld(names[i]), strncmp(names[i], "cuStreamBegin", 13) != 0 &&
							   strncmp(names[i], "cuStreamEnd", 11) != 0);
	}
}

static void test_names(void)
{
	static const struct {
		const char *name;
		bool withheld;
	} cases[] = {
		{"cuArray3DCreate", true},   // the first name of the table
		{"cuVDPAUCtxCreate", true},  // the last name of the table
		{"cuMemAlloc", true},        // has a second version too
		{"cuLaunchKernel", true},    // has a version for per-thread streams
		{"cuGreenCtxCreate", true},  // has no further version
		{"cuMemFre", false},         // is a prefix of a replaced name
		{"cuMemFreeX", false},       // has a replaced name as prefix
		{"cuMemFree_", false},       // has no suffix of a version
		{"cuMemFree_v", false},
		{"cuMemAllocX", true},       // unknown, of a family that allocates
		{"cuTileLaunch", true},
		{"cuMemAllocHost", true},    // known, but not the exported function
		{"cuFrobnicate", false},     // unknown, of a family that cannot allocate
		{"cuDeviceGetName", false},  // only the driver has the name
		{"cu", false},
		{"", false},
		{"a", false},                // before all names
		{"zz", false},               // after all names
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (is_withheld(cases[i].name) != cases[i].withheld) {
			fprintf(stderr, "%s is %swithheld\n", cases[i].name, cases[i].withheld ? "not " : "");
			abort();
		}
}

static void driver_exported(void)
{
}

// A known function that is not replaced is returned if the driver exports the function.
static void test_known(void)
{
	vg_real_functions[VG_SYM_cuMemAllocHost_v2] = (vg_function)driver_later;
	CHECK(!is_withheld("cuMemAllocHost"));
	vg_real_functions[VG_SYM_cuMemAllocHost_v2] = (vg_function)driver_exported;
	CHECK(is_withheld("cuMemAllocHost"));
}

static CUresult driver_exported_address(const char *name, void **function, int version, uint64_t flags, int *status)
{
	void (*exported)(void) = driver_exported;

	CHECK(name && !version && !flags);
	memcpy(function, &exported, sizeof exported);
	*status = 0;
	return CUDA_SUCCESS;
}

// cuGetProcAddress exchanges an exported driver function with a replacement, whatever name was
// requested.
static void test_exchanged(void)
{
	static const char *const names[] = {"cuMemAlloc", "cuMemAlloc_v2", "cuMemFree", "cuFrobnicate", "cuDeviceGetName"};
	int (*own)(void) = cuMemAlloc_v2;

	DRIVER(cuGetProcAddress_v2, driver_exported_address);
	DRIVER(cuMemAlloc_v2, driver_exported);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		void *found = NULL;
		int status = -1;

		CHECK_EQUAL(vg_cuGetProcAddress_v2(names[i], &found, 0, 0, &status), CUDA_SUCCESS);
		CHECK(memcmp(&found, &own, sizeof found) == 0);
	}
}

static CUresult driver_old_address(const char *name, void **function, int version, uint64_t flags)
{
	int status;

	CHECK(version == 12000);
	return driver_address(name, function, 0, flags, &status);
}

// said calls a function, and returns the number of written lines that contain these words.
static int said(void (*function)(void), const char *words)
{
	FILE *file = tmpfile();
	int before = dup(STDERR_FILENO);
	char line[1024];
	int count = 0;

	CHECK(file && before >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
	function();
	CHECK(dup2(before, STDERR_FILENO) >= 0);
	close(before);
	rewind(file);
	while (fgets(line, sizeof line, file))
		count += strstr(line, words) != NULL;
	fclose(file);
	return count;
}

static void check_twice(void)
{
	vg_cu_proc_check();
	vg_cu_proc_check();
}

static void test_identity(void)
{
	static const char words[] = "cuGetProcAddress returns other functions than";

	DRIVER(cuGetProcAddress, driver_old_address);
	DRIVER(cuMemAlloc_v2, driver_later);
	DRIVER(cuLaunchKernel, driver_later);
	CHECK_EQUAL(said(check_twice, words), 0);
	DRIVER(cuLaunchKernel, driver_exported);
	CHECK_EQUAL(said(check_twice, words), 1);
	DRIVER(cuMemAlloc_v2, driver_exported);
}

int main(void)
{
	test_exchanged();
	DRIVER(cuGetProcAddress_v2, driver_address);
	test_own();
	test_identity();
	test_names();
	test_known();
	return 0;
}

// SPDX-License-Identifier: Apache-2.0

// What cuGetProcAddress hands out of a driver that is newer than this library: the driver
// here answers every name with a function that nobody knows.

#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "driver.h"
#include "stand_in.h"

CUresult vg_cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

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

// is_withheld asks for a function by name; the answer is the driver's or none at all.
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

// Every function that we stand in for is withheld where it is another than we know, but for
// those that begin and end captures: what they give is not limited.
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
		{"cuArray3DCreate", true},   // the first of the table
		{"cuVDPAUCtxCreate", true},  // and the last
		{"cuMemAlloc", true},        // has a second version, too
		{"cuLaunchKernel", true},    // has one for per-thread streams
		{"cuGreenCtxCreate", true},  // has neither
		{"cuMemAllo", false},        // begins as one that we stand in for
		{"cuMemAllocX", false},      // goes on after one
		{"cuMemAlloc_", false},      // ends as no version does
		{"cuMemAlloc_v", false},
		{"cuDeviceGetName", false},  // is the driver's alone
		{"cu", false},
		{"", false},
		{"a", false},                // before all of them
		{"zz", false},               // after all of them
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (is_withheld(cases[i].name) != cases[i].withheld) {
			fprintf(stderr, "%s is %swithheld\n", cases[i].name, cases[i].withheld ? "not " : "");
			abort();
		}
}

int main(void)
{
	DRIVER(cuGetProcAddress_v2, driver_address);
	test_own();
	test_names();
	return 0;
}

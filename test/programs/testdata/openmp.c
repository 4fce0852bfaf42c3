// SPDX-License-Identifier: Apache-2.0
//
// This program uses OpenMP's target constructs, which the compiler's runtime translates into requests
// to a GPU. The simulated GPU computes nothing, so the program checks only the copied data, and the
// granted and the refused memory. The program prints one line of JSON.
//
//	openmp map|fill
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { numbers = 1 << 20 };

#pragma omp declare target
static int squares[8] = {0, 1, 4, 9, 16, 25, 36, 49};
int shift = -3;
const char *words[2] = {"zero", "one"};
int moved(int i)
{
	return squares[i % 8] + shift + words[i & 1][0];
}
#pragma omp end declare target

// globals checks that variables on the GPU have the initial values of the source.
static void globals(void)
{
	memset(squares, -1, sizeof squares);
	shift = 0;
#pragma omp target update from(squares, shift)
	for (int i = 0; i < 8; i++)
		CHECK(squares[i] == i * i);
	CHECK(shift == -3);
}

// mapping checks that data that is copied to the GPU comes back, at any offset.
static void mapping(void)
{
	int *a = malloc(numbers * sizeof *a);

	for (int i = 0; i < numbers; i++)
		a[i] = i;
#pragma omp target enter data map(to : a[0 : numbers])
	CHECK(omp_target_is_present(a, omp_get_default_device()));
	memset(a, 0, numbers * sizeof *a);
#pragma omp target update from(a[1000 : 10])
	CHECK(a[999] == 0 && a[1000] == 1000 && a[1009] == 1009 && a[1010] == 0);
#pragma omp target teams distribute parallel for num_teams(4) thread_limit(64) map(alloc : a[0 : numbers])
	for (int i = 0; i < numbers; i++)
		a[i] = moved(a[i]);
#pragma omp target exit data map(release : a[0 : numbers])
	CHECK(!omp_target_is_present(a, omp_get_default_device()));
	free(a);
}

// tasks runs target tasks in their order, without a wait for each task.
static void tasks(void)
{
	int *a = calloc(numbers, sizeof *a);

#pragma omp parallel
#pragma omp single
	for (int i = 0; i < 16; i++) {
#pragma omp target nowait depend(inout : a[0 : numbers]) map(tofrom : a[0 : numbers])
		a[i] += i;
	}
	free(a);
}

static void copying(void)
{
	int device = omp_get_default_device(), host = omp_get_initial_device();
	char *there = omp_target_alloc(3 * MIB, device), *here = malloc(3 * MIB);

	CHECK(there && here);
	memset(here, 7, 3 * MIB);
	CHECK(omp_target_memcpy(there, here, 3 * MIB, 0, 0, device, host) == 0);
	memset(here, 0, 3 * MIB);
	CHECK(omp_target_memcpy(here, there, MIB, MIB, 2 * MIB, host, device) == 0);
	CHECK(here[0] == 0 && here[MIB - 1] == 0 && here[MIB] == 7 && here[2 * MIB - 1] == 7 &&
	      here[2 * MIB] == 0);
	omp_target_free(there, device);
	free(here);
}

// fill allocates pieces until the driver refuses a piece, and then ever smaller pieces, until no
// memory is left.
static size_t fill(void)
{
	size_t granted = 0, piece = 64 * MIB;
	int device = omp_get_default_device();
	void *all[4096];
	int count = 0;

	while (piece >= MIB / 4) {
		void *p = count < 4096 ? omp_target_alloc(piece, device) : NULL;

		if (p) {
			all[count++] = p;
			granted += piece;
		} else {
			piece /= 2;
		}
	}
	CHECK(count < 4096);
	// The program can allocate freed memory again.
	omp_target_free(all[0], device);
	all[0] = omp_target_alloc(64 * MIB, device);
	CHECK(all[0]);
	CHECK(!omp_target_alloc(64 * MIB, device));
	while (count > 0)
		omp_target_free(all[--count], device);
	return granted;
}

int main(int argc, char **argv)
{
	size_t granted = 0;
	int target = 0;

	CHECK(argc == 2 && omp_get_num_devices() > 0);
	// Only a program that runs on the host would get a 1.
#pragma omp target map(from : target)
	target = omp_is_initial_device();
	CHECK(target != 1);
	if (strcmp(argv[1], "map") == 0) {
		globals();
		mapping();
		copying();
		tasks();
	} else {
		granted = fill();
	}
	printf("{\"devices\": %d, \"granted\": %zu}\n", omp_get_num_devices(), granted);
	return 0;
}

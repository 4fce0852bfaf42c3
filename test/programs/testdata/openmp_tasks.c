// SPDX-License-Identifier: Apache-2.0
//
// This program uses all GPUs at once by OpenMP's target constructs. The program has chains of tasks
// without waits between them, and several threads of the host, and uses OpenMP's functions for
// memory. The simulated GPU computes nothing, so the program checks only the copied data. The
// program prints one line of JSON.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { numbers = 1 << 20, side = 128, part = 64, at = 8 };

#pragma omp declare target
static int table[1 << 16];
static int entry(int i)
{
	return table[i % (1 << 16)];
}
#pragma omp end declare target

// tables checks that each GPU has a table, which the program writes and reads back.
static void tables(int device)
{
	for (int i = 0; i < 1 << 16; i++)
		table[i] = i + device;
#pragma omp target update to(table) device(device)
	memset(table, 0, sizeof table);
#pragma omp target update from(table) device(device)
	for (int i = 0; i < 1 << 16; i++)
		CHECK(table[i] == i + device);
}

// chains runs two chains of tasks on a GPU, each chain in its order.
static void chains(int device)
{
	int *a = calloc(numbers, sizeof *a), *b = calloc(numbers, sizeof *b);

	CHECK(a && b);
	for (int i = 0; i < 20; i++) {
#pragma omp target nowait depend(inout : a[0]) map(tofrom : a[0 : numbers]) device(device)
		a[0] += entry(i);
#pragma omp target nowait depend(inout : b[0]) map(tofrom : b[0 : numbers]) device(device)
		b[0] += entry(i);
	}
#pragma omp taskwait
	CHECK(!omp_target_is_present(a, device) && !omp_target_is_present(b, device));
	free(a);
	free(b);
}

// threads makes threads of the host use the GPUs at once.
static void threads(int devices)
{
#pragma omp parallel for num_threads(4)
	for (int i = 0; i < 64; i++) {
		int *a = malloc(numbers / 16 * sizeof *a);

		CHECK(a);
		a[numbers / 32] = i;
#pragma omp target device(i % devices) map(tofrom : a[0 : numbers / 16])
		a[1] = a[0];
		CHECK(a[numbers / 32] == i);
		free(a);
	}
}

// rectangle checks that a part of a square comes back, without the data around the part.
static void rectangle(const char *there, int device)
{
	const size_t volume[2] = {part, part}, offsets[2] = {at, at}, sides[2] = {side, side};
	static char here[side][side];

	memset(here, -1, sizeof here);
	CHECK(omp_target_memcpy_rect(here, there, 1, 2, volume, offsets, offsets, sides, sides,
				     omp_get_initial_device(), device) == 0);
	for (int y = 0; y < side; y++)
		for (int x = 0; x < side; x++) {
			int inside = y >= at && y < at + part && x >= at && x < at + part;

			CHECK(here[y][x] == (inside ? (char)(y * side + x) : -1));
		}
}

// memory checks that data that is copied to a GPU, and then to other memory of the GPU, comes back.
static void memory(int device)
{
	int host = omp_get_initial_device();
	char *there = omp_target_alloc(8 * MIB, device), *other = omp_target_alloc(8 * MIB, device);
	char *here = malloc(8 * MIB), *back = calloc(8, MIB);

	CHECK(there && other && here && back);
	for (size_t i = 0; i < 8 * MIB; i++)
		here[i] = (char)i;
	CHECK(omp_target_memcpy(there, here, 8 * MIB, 0, 0, device, host) == 0);
	CHECK(omp_target_memcpy(other, there, 8 * MIB, 0, 0, device, device) == 0);
	CHECK(omp_target_memcpy(back, other, 8 * MIB, 0, 0, host, device) == 0);
	CHECK(memcmp(here, back, 8 * MIB) == 0);
	rectangle(there, device);
	CHECK(omp_target_associate_ptr(back, other, 8 * MIB, 0, device) == 0);
	CHECK(omp_target_is_present(back, device));
	CHECK(omp_target_disassociate_ptr(back, device) == 0);
	CHECK(!omp_target_is_present(back, device));
	omp_target_free(there, device);
	omp_target_free(other, device);
	free(here);
	free(back);
}

int main(void)
{
	int devices = omp_get_num_devices();

	CHECK(devices > 0);
	for (int device = 0; device < devices; device++) {
		tables(device);
		memory(device);
	}
#pragma omp parallel num_threads(4)
	chains(omp_get_thread_num() % devices);
	threads(devices);
	printf("{\"devices\": %d, \"granted\": 0}\n", devices);
	return 0;
}

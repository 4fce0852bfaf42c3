// SPDX-License-Identifier: Apache-2.0
//
// This program uses OpenACC, which gcc's runtime translates into requests to a GPU. The simulated
// GPU computes nothing, so the program checks only the copied data, their order, and the granted
// and the refused memory. The program prints one line of JSON.
//
//	openacc queues|fill
#include <openacc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

// CHUNK is the size of the chunks in which a driver allocates memory. Small pieces share a chunk.
#define CHUNK (2 * MIB)

// KEPT is memory that may stay used. A driver may keep some empty chunks, and may allocate the
// memory of modules late.
#define KEPT (16 * MIB)

enum { queues = 4, numbers = 1 << 20, rounds = 400 };

static size_t available(void)
{
	return acc_get_property(0, acc_device_nvidia, acc_property_free_memory);
}

// order checks that the last copy in a queue counts, and that a queue's work comes after the work
// for which the queue waits.
static void order(void)
{
	int *first = malloc(numbers * sizeof *first), *last = malloc(numbers * sizeof *last);
	void *there[queues];

	for (int i = 0; i < numbers; i++) {
		first[i] = i;
		last[i] = -i;
	}
	for (int q = 0; q < queues; q++) {
		there[q] = acc_malloc(numbers * sizeof *first);
		CHECK(there[q]);
		acc_memcpy_to_device_async(there[q], first, numbers * sizeof *first, q);
		acc_memcpy_to_device_async(there[q], last, numbers * sizeof *last, q);
	}
	for (int q = 1; q < queues; q++)
		acc_wait_async(q - 1, q);
	memset(first, 0, numbers * sizeof *first);
	acc_memcpy_from_device_async(first, there[queues - 1], numbers * sizeof *first, queues - 1);
	acc_wait(queues - 1);
	CHECK(acc_async_test(queues - 1));
	acc_wait_all();
	CHECK(acc_async_test_all());
	CHECK(memcmp(first, last, numbers * sizeof *first) == 0);
	for (int q = 0; q < queues; q++)
		acc_free(there[q]);
	free(first);
	free(last);
}

// regions runs kernels in queues. The runtime frees a region's memory when the queue has reached
// the region. The runtime defers the release, because the driver frees nothing in the callback.
// Together the regions would exceed every limit of the tests.
static void regions(void)
{
	float *a[queues];

	for (int q = 0; q < queues; q++)
		a[q] = malloc(16 * MIB * sizeof *a[q]); // never touched
	for (int round = 0; round < rounds; round++) {
		float *b = a[round % queues];

#pragma acc parallel loop create(b[0 : 16 * MIB]) async(round % queues)
		for (size_t i = 0; i < 16 * MIB; i++)
			b[i] += 1;
		if (round % queues == queues - 1)
			acc_wait_all();
	}
	acc_wait_all();
	for (int q = 0; q < queues; q++)
		free(a[q]);
}

// fill allocates pieces until the driver refuses a piece, and then ever smaller pieces, until no
// memory is left.
static size_t fill(void)
{
	size_t granted = 0, piece = 64 * MIB;
	void *all[4096];
	int count = 0;

	while (piece >= MIB / 4) {
		void *p = count < 4096 ? acc_malloc(piece) : NULL;

		if (p) {
			all[count++] = p;
			granted += piece;
		} else {
			CHECK(available() < 2 * piece || available() < CHUNK);
			piece /= 2;
		}
	}
	CHECK(count < 4096);
	acc_free(all[0]);
	all[0] = acc_malloc(64 * MIB);
	CHECK(all[0]);
	while (count > 0)
		acc_free(all[--count]);
	return granted;
}

int main(int argc, char **argv)
{
	size_t granted = 0, before;

	CHECK(argc == 2 && acc_get_num_devices(acc_device_nvidia) > 0);
	acc_init(acc_device_nvidia);
	before = available();
	CHECK(before > 0 && before < acc_get_property(0, acc_device_nvidia, acc_property_memory));
	if (strcmp(argv[1], "queues") == 0) {
		order();
		regions();
	} else {
		granted = fill();
	}
	// The runtime frees the rest of the queues' memory at its next allocation.
	acc_free(acc_malloc(MIB));
	CHECK(available() < before + KEPT && available() + KEPT > before);
	printf("{\"devices\": %d, \"granted\": %zu}\n", acc_get_num_devices(acc_device_nvidia), granted);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0

// two_gpus allocates linear memory on two GPUs at neighbouring addresses, or in turn at the same
// address. two_gpus frees all memory, and fills both GPUs. two_gpus prints its pid, and the smaller
// of the two GPUs' granted bytes. The argument selects the order of allocations and frees.
// ways_test.sh runs this program.

#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "program.h"

enum { gpus = 2, most_pieces = 40 };

static CUcontext contexts[gpus];
static CUdeviceptr pieces[gpus][most_pieces];
static int counts[gpus];

static bool allocate(int gpu, size_t bytes, CUdeviceptr *address)
{
	CHECK_EQUAL(CALL("cuCtxSetCurrent", (CUcontext), contexts[gpu]), 0);
	return CALL("cuMemAlloc_v2", (CUdeviceptr *, size_t), address, bytes) == 0;
}

static void add(int gpu, size_t bytes)
{
	CHECK(allocate(gpu, bytes, &pieces[gpu][counts[gpu]]));
	counts[gpu]++;
}

static void drop(int gpu, int piece)
{
	CHECK_EQUAL(CALL("cuCtxSetCurrent", (CUcontext), contexts[gpu]), 0);
	CHECK_EQUAL(CALL("cuMemFree_v2", (CUdeviceptr), pieces[gpu][piece]), 0);
	pieces[gpu][piece] = pieces[gpu][--counts[gpu]];
}

static void drop_all(int gpu)
{
	while (counts[gpu])
		drop(gpu, counts[gpu] - 1);
}

// The last GPU that frees memory is not the first GPU that allocated.
static void come_in_turn(void)
{
	for (int i = 0; i < 300; i++) {
		for (int gpu = 0; gpu < gpus; gpu++)
			add(gpu, 4096);
		for (int gpu = 0; gpu < gpus; gpu++)
			drop_all(gpu);
	}
}

static void come_at_random(unsigned seed)
{
	srand(seed);
	for (int i = 0; i < 4000; i++) {
		int gpu = rand() % gpus;

		if (rand() % 2 && counts[gpu] < most_pieces)
			add(gpu, (size_t)(1 + rand() % 1800) << 10);
		else if (counts[gpu])
			drop(gpu, rand() % counts[gpu]);
	}
	for (int gpu = 0; gpu < gpus; gpu++)
		drop_all(gpu);
}

// fill allocates a GPU's remaining memory and returns its size.
static uint64_t fill(int gpu)
{
	uint64_t granted = 0;
	CUdeviceptr address;

	while (allocate(gpu, 2 * MIB, &address))
		granted += 2 * MIB;
	return granted;
}

int main(int argc, char **argv)
{
	uint64_t granted = UINT64_MAX;

	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	for (int gpu = 0; gpu < gpus; gpu++)
		CHECK_EQUAL(CALL("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &contexts[gpu], gpu), 0);
	if (argc > 1)
		come_at_random((unsigned)atoi(argv[1]));
	else
		come_in_turn();
	for (int gpu = 0; gpu < gpus; gpu++) {
		uint64_t more = fill(gpu);

		granted = more < granted ? more : granted;
	}
	printf("{\"pid\":%d,\"granted_bytes\":%llu}\n", (int)getpid(), (unsigned long long)granted);
	return 0;
}

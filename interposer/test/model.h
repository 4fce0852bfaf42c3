// SPDX-License-Identifier: Apache-2.0

// This header declares a model of the driver and of the agent, which replaces the real functions.
// The model reuses handles as soon as they are free, and sometimes fails. In each call, the model
// runs the steps of other threads, before and after the call's work.

#ifndef VG_TEST_MODEL_H
#define VG_TEST_MODEL_H

#include "cuda_abi.h"
#include "pages/pages.h"

#define MIB (UINT64_C(1) << 20)

enum {
	model_contexts = 6,   // the first is the primary context
	model_units = 4 * 24, // units of a quarter of a block of 2 MiB
	model_arrays = 32,
	model_memories = 24,
	model_places = 16, // places where memory can be mapped
};

static const uint64_t model_unit = 2 * MIB / 4;

// model_install installs the model as the driver. Each call runs `others`.
void model_install(void (*others)(void));

// model_current is the number of the running thread's context, or -1.
extern int model_current;

// model_held returns the process's physical memory in bytes.
uint64_t model_held(void);

bool model_has_context(void);

// model_below returns a random number below the bound. Each run has the same numbers.
uint64_t model_below(uint64_t bound);

CUcontext model_context(int number);
int model_context_number(CUcontext context);

// model_close closes a descriptor of exported memory, and returns false if the memory has no
// descriptor.
bool model_close(int memory);

// model_address returns the address of a place, which has 64 MiB.
uint64_t model_address(int place);

#endif

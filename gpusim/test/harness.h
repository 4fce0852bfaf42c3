// SPDX-License-Identifier: Apache-2.0
/*
 * This header declares functions shared by the tests: the driver by dlopen, checks, helper
 * processes.
 */
#ifndef GPUSIM_HARNESS_H
#define GPUSIM_HARNESS_H

#include "../cuda/abi.h"
#include "state.h"

#include <stdio.h>
#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)
#define MS UINT64_C(1000000)

/*
 * test_ptx holds a kernel that spins for the time in its first parameter, a kernel that then traps,
 * and an empty kernel.
 */
extern const char test_ptx[];

/*
 * driver returns an entry point of the simulated libcuda.so.1. driver ends the test if the entry
 * point is missing.
 */
void *driver(const char *name);

/* DRIVER declares a pointer to a driver function of the same name in this scope. */
#define DRIVER(name, ...) CUresult (*name)(__VA_ARGS__) = (CUresult (*)(__VA_ARGS__))driver(#name)

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

#define OK(call) \
	do { \
		CUresult result_ = (call); \
		if (result_ != CUDA_SUCCESS) { \
			fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, result_); \
			exit(1); \
		} \
	} while (0)

/*
 * OUT_OF_BOUNDS is the exit status of a test that found a value out of bounds. run.sh repeats the
 * test, because most of these values are times, which a stalled machine distorts.
 */
enum { OUT_OF_BOUNDS = 75 };

/* BETWEEN checks that a value is within bounds, and prints any other value. */
#define BETWEEN(value, low, high) \
	do { \
		double value_ = (double)(value); \
		if (value_ < (double)(low) || value_ > (double)(high)) { \
			fprintf(stderr, "%s:%d: %s is %g, not within %g … %g\n", __FILE__, __LINE__, \
				#value, value_, (double)(low), (double)(high)); \
			exit(OUT_OF_BOUNDS); \
		} \
	} while (0)

/* begin initialises the driver with a context on GPU 0. */
void begin(void);

/* kernel returns the kernel of this name from test_ptx, in the current context. */
CUfunction kernel(const char *name);

/* launch_for launches a kernel with a time, over some blocks, in a stream. */
CUresult launch_for(CUfunction function, CUstream stream, uint64_t ns, unsigned blocks);

/* spin launches a spin of this length over some blocks, in a stream. */
void spin(CUstream stream, uint64_t ns, unsigned blocks);

/* start runs a function in a child process that has not touched the driver. */
pid_t start(void (*run)(void *), void *argument);
/* finish waits for the process and checks its exit status. */
void finish(pid_t pid);
void kill_hard(pid_t pid);

/* observer returns the state for an observer. */
struct gs_handle *observer(void);
/* physical returns the physical bytes of a process, or 0 if the process has no slot. */
uint64_t physical(pid_t pid, uint32_t gpu);
uint64_t gpu_time(pid_t pid, uint32_t gpu);
uint64_t used(uint32_t gpu);

void sleep_ns(uint64_t ns);

#endif

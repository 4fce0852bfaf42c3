// SPDX-License-Identifier: Apache-2.0
/*
 * This header declares the properties that differ between drivers: names, costs, rules. A profile
 * sets the properties when a machine is created (gpusim create --profile). The settings are part of
 * the shared state. A zeroed structure is the lenient driver of a machine without a profile. Calls
 * cost nothing, and the driver enforces no rule that a program could break.
 */
#ifndef GPUSIM_DRIVER_H
#define GPUSIM_DRIVER_H

#include <stdint.h>

#define GS_MAX_COSTS 32u
#define GS_MAX_FAILURES 16u
#define GS_CALL_SIZE 56u /* of a call's name, with its final zero */

/* gs_nvml_regime is NVML's report of processes to a caller in another pid namespace. */
enum gs_nvml_regime {
	GS_NVML_TRUE = 0,          /* the pids in the caller's namespace, with their bytes */
	GS_NVML_HOST_PIDS = 1,     /* host pids, with bytes, for any caller */
	GS_NVML_OWN_ZERO = 2,      /* in a container: the caller's own pids, each with 0 bytes */
	GS_NVML_OWN_BYTES = 3,     /* in a container: the caller's own pids, with bytes */
	GS_NVML_NOT_AVAILABLE = 4, /* no bytes for any caller: all ones */
};

/* gs_exit is the moment from which calls are refused while a process exits. */
enum gs_exit {
	GS_EXIT_NEVER = 0,      /* calls are answered to the end */
	GS_EXIT_HANDLER = 1,    /* from the exit handler that cuInit registers */
	GS_EXIT_DESTRUCTOR = 2, /* from the library's destructor */
};

/* GS_TRAP_LAUNCH_FAILED is CUDA_ERROR_LAUNCH_FAILED, the usual result after an exception. */
#define GS_TRAP_LAUNCH_FAILED 719u

/* gs_cost is the time for which a call of this name keeps its thread busy. */
struct gs_cost {
	char call[GS_CALL_SIZE];
	uint64_t ns;
};

/*
 * gs_failure is a failure of calls of this name in a process: `after` calls succeed, and the next
 * `count` calls return `result`. The first applicable failure of a name applies.
 */
struct gs_failure {
	char call[GS_CALL_SIZE];
	uint32_t after;
	uint32_t count; /* 0: all later calls */
	int32_t result;
	uint32_t reserved;
};

struct gs_driver {
	char names[16];         /* the branch whose names the library exports, "r580" */
	uint32_t nvml;          /* enum gs_nvml_regime */
	uint32_t nvml_lock;     /* 1: NVML's costs pass under one lock of the machine */
	uint64_t nvml_open_ns;  /* the first nvmlInit of a process */
	uint64_t nvml_handle_ns;    /* the first handle of a device in a process */
	uint64_t nvml_processes_ns; /* each list of processes */
	uint32_t lazy_loading;  /* 1: code is loaded at the first use of a function in the code */
	uint32_t load_waits;    /* 1: loading locks the context and waits for the context's work */
	uint32_t free_waits;    /* 1: cuMemFree waits for the GPU's work of the context */
	uint32_t imports_keep;  /* 1: memory lives until the memory's last importer drops the memory */
	uint32_t map_parts;     /* 1: a part of a handle's memory can be mapped alone */
	uint32_t events_bound;  /* 1: an event can only be recorded in streams of the event's context */
	uint32_t capture_rules; /* 1: legacy stream, prohibited calls and invalidation as documented */
	char constructor[256]; /* a library that the driver opens when it creates a context, "": none */
	uint32_t exits;         /* enum gs_exit */
	uint32_t cost_count;
	uint32_t failure_count;
	uint32_t lazy_heap;     /* 1: raised limits take memory when a kernel is next launched */
	struct gs_cost costs[GS_MAX_COSTS];
	struct gs_failure failures[GS_MAX_FAILURES];
	uint32_t trap; /* the result that a kernel with an exception leaves */
	uint32_t reserved0;
	uint64_t reserved[30];
};

#endif

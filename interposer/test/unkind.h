// SPDX-License-Identifier: Apache-2.0

// This header declares types of calls, and the physical memory of a process, for the programs of
// unkind_test.sh.

#ifndef VG_TEST_UNKIND_H
#define VG_TEST_UNKIND_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "descriptor.h"
#include "program.h"

#define GIB (UINT64_C(1) << 30)
#define ALLOC (uint64_t *, size_t)
#define CREATE (uint64_t *, size_t, const CUmemAllocationProp *, unsigned long long)
#define EXPORT (int *, uint64_t, int, unsigned long long)
#define IMPORT (uint64_t *, void *, int)

#define LAUNCH \
	(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)

// The function `spin` runs for this many ns.
static const char text[] =
	".version 7.0\n.target sm_50\n.address_size 64\n"
	".visible .global .align 16 .b8 filler[1048576];\n"
	".visible .entry spin(.param .u64 ns)\n{\n"
	"	.reg .pred %again;\n	.reg .u64 %now, %end, %ns;\n"
	"	ld.param.u64 %ns, [ns];\n	mov.u64 %end, %globaltimer;\n	add.u64 %end, %end, %ns;\n"
	"spinning:\n	mov.u64 %now, %globaltimer;\n	setp.lt.u64 %again, %now, %end;\n"
	"	@%again bra spinning;\n	ret;\n}\n";

static const CUmemAllocationProp shareable = {
	.type = 1, .requestedHandleTypes = posix_fd, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
};

// held returns the physical memory of this process on its first GPU, from the simulator's oracle.
static inline uint64_t held(void)
{
	char command[1024];
	char process[64];
	char *line = NULL;
	const char *at;
	size_t size = 0;
	uint64_t bytes = 0;
	FILE *oracle;

	snprintf(command, sizeof command,
		 "LD_PRELOAD= \"$GPUSIM_TOOL\" oracle --json \"$(dirname \"$GPUSIM_STATE\")\"");
	snprintf(process, sizeof process, "\"pid\":%d,", (int)getpid());
	oracle = popen(command, "re");
	CHECK(oracle && getline(&line, &size, oracle) > 0);
	at = strstr(line, process);
	at = at ? strstr(at, "\"bytes\":") : NULL;
	CHECK(at && sscanf(at, "\"bytes\":%" SCNu64, &bytes) == 1);
	CHECK(pclose(oracle) == 0);
	free(line);
	return bytes;
}

static inline void use_gpu(int device)
{
	CUcontext context;

	CHECK_EQUAL(CALL("cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice), &context, device), 0);
	CHECK_EQUAL(CALL("cuCtxSetCurrent", (CUcontext), context), 0);
}

// launch launches `spin` for a microsecond.
static inline int launch(void *function)
{
	uint64_t ns = 1000;
	void *parameters[] = {&ns};

	return CALL("cuLaunchKernel", LAUNCH, function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
}

#endif

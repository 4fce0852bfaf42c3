// SPDX-License-Identifier: Apache-2.0

// plugin is a library that uses CUDA in its constructor, after a delay. The thread holds the
// loader's lock during the constructor.

#include <time.h>

#include "program.h"

__attribute__((constructor)) static void plugin_use_cuda(void)
{
	const struct timespec nap = {.tv_nsec = 300000000};

	nanosleep(&nap, NULL);
	CHECK_EQUAL(CALL("cuInit", (unsigned), 0), 0);
	use_primary_context();
}

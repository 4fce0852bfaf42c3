// SPDX-License-Identifier: Apache-2.0
#ifndef GPUSIM_NAMES_H
#define GPUSIM_NAMES_H

#include <stddef.h>

/* driver_name is an exported entry point and the CUDA version that added it. */
struct driver_name {
	const char *name;
	void (*function)(void);
	int version;
};

extern const struct driver_name driver_names[]; /* sorted by name, as strcmp */
extern const size_t driver_name_count;

#endif

// SPDX-License-Identifier: Apache-2.0

// Our functions of the management library share these declarations.

#ifndef VG_NVML_H
#define VG_NVML_H

#include "load/real.h"
#include "pages/pages.h"

enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_INVALID_ARGUMENT = 2,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
	NVML_ERROR_INSUFFICIENT_SIZE = 7,
	NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
};

// vg_nvml_pages opens the pages when they are first needed. vg_nvml_pages takes no slot, because
// the pages are only read here; NULL: there are no pages, or they are not whole.
struct vg_pages *vg_nvml_pages(void);

// vg_nvml_index returns the device's index on the pages, or -1.
int vg_nvml_index(const struct vg_pages *pages, void *device);

#endif

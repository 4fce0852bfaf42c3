// SPDX-License-Identifier: Apache-2.0

// The interposer's functions of the management library share these declarations.

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

// vg_nvml_pages returns the container's pages, and opens the pages at the first call. vg_nvml_pages
// returns NULL if the pages are missing or not whole. vg_nvml_pages takes no slot, because the NVML
// functions only read the pages.
struct vg_pages *vg_nvml_pages(void);

// vg_nvml_index returns the device's index on the pages, or -1 if the pages do not have the device.
int vg_nvml_index(const struct vg_pages *pages, void *device);

#endif

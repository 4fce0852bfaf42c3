// SPDX-License-Identifier: Apache-2.0

// How much device memory a module's image will take, read from the image before
// the driver loads it.

#ifndef VG_IMAGE_H
#define VG_IMAGE_H

#include <stddef.h>
#include <stdint.h>

enum { vg_image_unknown_size = 0 };

// vg_image_bytes estimates what the image takes: its code, and its variables.
// `size` is the length of the image, or vg_image_unknown_size for one in memory
// that the program vouches for, as in cuModuleLoadData.
uint64_t vg_image_bytes(const void *image, size_t size);

// vg_image_file_bytes does so for a file; 0 if it cannot be read.
uint64_t vg_image_file_bytes(const char *path);

// vg_ptx_bytes is the size of the variables that PTX text of the given length
// declares at module scope.
uint64_t vg_ptx_bytes(const char *text, size_t length);

#endif

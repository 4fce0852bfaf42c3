// SPDX-License-Identifier: Apache-2.0

// This header covers the device memory that a module's image will take, read from the image before
// the driver loads it.

#ifndef VG_IMAGE_H
#define VG_IMAGE_H

#include <stddef.h>
#include <stdint.h>

enum { vg_image_unknown_size = 0 };

// vg_image_bytes estimates the memory for the image's code and variables. `size` is the length of
// the image, or vg_image_unknown_size for an image in memory that the program vouches for, as in
// cuModuleLoadData.
uint64_t vg_image_bytes(const void *image, size_t size);

// vg_image_file_bytes does the same for a file; 0: the file cannot be read.
uint64_t vg_image_file_bytes(const char *path);

#endif

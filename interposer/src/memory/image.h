// SPDX-License-Identifier: Apache-2.0

// This header covers the device memory that a module's image will take. The interposer reads the
// size from the image before the driver loads the image.

#ifndef VG_IMAGE_H
#define VG_IMAGE_H

#include <stddef.h>
#include <stdint.h>

enum { vg_image_unknown_size = 0 };

// vg_image_bytes estimates the memory for the image's code and variables. `size` is the length of
// the image. For an image without a stated length, as in cuModuleLoadData, `size` is
// vg_image_unknown_size.
uint64_t vg_image_bytes(const void *image, size_t size);

// vg_image_file_bytes estimates the memory for the image in a file. vg_image_file_bytes returns 0 if
// the file cannot be opened, and UINT64_MAX if the file cannot be read as a whole.
uint64_t vg_image_file_bytes(const char *path);

#endif

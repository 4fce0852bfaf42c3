// SPDX-License-Identifier: Apache-2.0

// This file fuzzes images of modules. The interposer reads the size of an image before the driver
// does. The interposer must read no byte beyond the image's end, whatever a program passes.

#include "memory/image.h"

#include <string.h>

#include "fuzz.h"
#include "memory/ptx.h"

static void run(struct fuzz_input *input)
{
	// AddressSanitizer reports each read behind the end of `exact`.
	uint8_t *image = malloc(input->size + 1);
	uint8_t *exact = malloc(input->size ? input->size : 1);

	FUZZ_CHECK(image && exact);
	memcpy(exact, input->data, input->size);
	memcpy(image, input->data, input->size);
	image[input->size] = '\0';
	if (input->size) {
		vg_image_bytes(exact, input->size);
		vg_ptx_bytes((const char *)exact, input->size);
	}
	free(exact);
	free(image);
}

const struct fuzz_target fuzz_image = {"image", run};

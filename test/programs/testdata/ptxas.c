// SPDX-License-Identifier: Apache-2.0
//
// This program stands in for NVIDIA's assembler, which clang runs. The driver's linker translates
// the PTX text.
//
//	ptxas ... --output-file OUTPUT ... INPUT.s
#include <stdio.h>
#include <string.h>

#include "check.h"

int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuLinkCreate_v2(unsigned count, int *options, void **values, void **link);
int cuLinkAddFile_v2(void *link, int type, const char *path, unsigned count, int *options, void **values);
int cuLinkComplete(void *link, void **image, size_t *size);

int main(int argc, char **argv)
{
	void *context, *link, *image;
	const char *input = NULL, *output = NULL;
	size_t size;
	FILE *file;

	for (int i = 1; i < argc; i++) {
		size_t length = strlen(argv[i]);

		if (length > 2 && strcmp(argv[i] + length - 2, ".s") == 0)
			input = argv[i];
		if (i > 1 && strcmp(argv[i - 1], "--output-file") == 0)
			output = argv[i];
	}
	CHECK(input && output);
	CHECK(cuInit(0) == 0 && cuCtxCreate_v2(&context, 0, 0) == 0);
	CHECK(cuLinkCreate_v2(0, NULL, NULL, &link) == 0);
	CHECK(cuLinkAddFile_v2(link, 1, input, 0, NULL, NULL) == 0);
	CHECK(cuLinkComplete(link, &image, &size) == 0);
	file = fopen(output, "wb");
	CHECK(file && fwrite(image, 1, size, file) == size && fclose(file) == 0);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0

// mkpages [-u] DIR UUID=MEMORY[:CONTEXT[:COMPUTE[:SMS]]]… makes a container's pages, or with -u
// changes the limits. MEMORY and CONTEXT are in bytes. COMPUTE is the part of the GPU's time, in
// parts per million. With SMS, the number of the GPU's SMs, COMPUTE is the part of the SMs that MPS
// lets the container use. mkpages -o DIR BYTES records the container's observed memory on its first
// GPU.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static int parse_uuid(const char *text, uint8_t uuid[16])
{
	for (int i = 0; i < 16; i++) {
		unsigned byte;

		text += *text == '-';
		if (sscanf(text, "%2x", &byte) != 1)
			return -1;
		uuid[i] = (uint8_t)byte;
		text += 2;
	}
	return *text == '=' ? 0 : -1;
}

static int parse_device(const char *text, struct vg_limits_device *device)
{
	const char *equals = strchr(text, '=');
	char *end;

	*device = test_device(0, 0);
	if (!equals || (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0) ||
	    parse_uuid(text + 4, device->uuid))
		return -1;
	device->kind = text[0] == 'G' ? VG_KIND_GPU : VG_KIND_MIG;
	device->memory_bytes = strtoull(equals + 1, &end, 10);
	if (*end == ':')
		device->context_bytes = strtoull(end + 1, &end, 10);
	if (*end == ':')
		device->compute_ppm = (uint32_t)strtoul(end + 1, &end, 10);
	if (*end == ':') {
		device->multiprocessors = (uint32_t)strtoul(end + 1, &end, 10);
		device->flags = VG_FLAG_MPS;
	}
	return *end ? -1 : 0;
}

static int observe(const char *dir, const char *bytes)
{
	int failed = test_pages_observe(dir, 0, strtoull(bytes, NULL, 10));

	if (failed)
		perror("mkpages");
	return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
	struct vg_limits_device devices[VG_MAX_DEVICES];
	int update = argc > 1 && strcmp(argv[1], "-u") == 0;
	int first = 2 + update;
	int failed;

	if (argc == 4 && strcmp(argv[1], "-o") == 0)
		return observe(argv[2], argv[3]);
	if (argc < first || argc - first > (int)VG_MAX_DEVICES) {
		fprintf(stderr, "usage: mkpages [-u] DIR UUID=MEMORY[:CONTEXT[:COMPUTE[:SMS]]]...\n");
		return 64;
	}
	for (int i = first; i < argc; i++) {
		if (parse_device(argv[i], &devices[i - first])) {
			fprintf(stderr, "mkpages: cannot read %s\n", argv[i]);
			return 64;
		}
	}
	failed = (update ? test_pages_update : test_pages_make)(argv[first - 1], devices,
								(uint32_t)(argc - first));
	if (failed)
		perror("mkpages");
	return failed ? 1 : 0;
}

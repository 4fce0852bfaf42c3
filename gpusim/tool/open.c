// SPDX-License-Identifier: Apache-2.0
/* This file contains functions of the commands that read a state. */
#include "tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int tool_open(struct gs_handle *handle, const char *dir)
{
	char path[512];
	int err;

	if (snprintf(path, sizeof(path), "%s/state", dir) >= (int)sizeof(path)) {
		fprintf(stderr, "gpusim: %s: path too long\n", dir);
		return -1;
	}
	err = gs_open(handle, path, GS_OBSERVER);
	if (!err)
		return 0;
	fprintf(stderr, "gpusim: cannot open %s: %s\n", path,
		err == -EPROTO ? "not a state of this version" : strerror(-err));
	return -1;
}

int tool_find_gpu(const struct gs_state *state, const char *name)
{
	char *end;
	unsigned long index = strtoul(name, &end, 10);

	if (*name && !*end)
		return index < state->gpu_count ? (int)index : -1;
	for (uint32_t g = 0; g < state->gpu_count; g++) {
		char uuid[GS_UUID_SIZE];

		gs_uuid_text(&state->gpus[g], uuid);
		if (strcmp(uuid, name) == 0)
			return (int)g;
	}
	return -1;
}

void tool_json_string(const char *text)
{
	putchar('"');
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < 0x20)
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

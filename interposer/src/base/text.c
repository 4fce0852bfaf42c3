// SPDX-License-Identifier: Apache-2.0

#include "text.h"

#include <string.h>

size_t vg_text_append(char *to, size_t size, size_t at, const char *text, size_t length)
{
	if (at >= size || length >= size - at)
		return size;
	memcpy(to + at, text, length);
	to[at + length] = '\0';
	return at + length;
}

void vg_text_join(char *to, size_t size, const char *dir, const char *name)
{
	size_t length = vg_text_append(to, size, 0, dir, strlen(dir));

	if (vg_text_append(to, size, length, name, strlen(name)) == size)
		to[0] = '\0';
}

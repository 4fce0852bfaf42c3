// SPDX-License-Identifier: Apache-2.0

#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void vg_log(enum vg_log_topic topic, const char *format, ...)
{
	static _Atomic uint32_t said;
	uint32_t bit = UINT32_C(1) << topic;
	char line[512] = "nri-vgpu: ";
	size_t length = strlen(line);
	va_list arguments;
	int saved = errno;

	if (atomic_fetch_or(&said, bit) & bit)
		return;
	va_start(arguments, format);
	vsnprintf(line + length, sizeof line - length - 1, format, arguments);
	va_end(arguments);
	length = strlen(line);
	line[length++] = '\n';
	// A single write keeps lines of several processes apart. A failed write cannot be reported
	// anywhere else.
	if (write(STDERR_FILENO, line, length) < 0)
		errno = saved;
	errno = saved;
}

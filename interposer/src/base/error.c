// SPDX-License-Identifier: Apache-2.0

#include "error.h"

#include <stdarg.h>
#include <stdio.h>

void vg_error_set(struct vg_error *error, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(error->text, sizeof error->text, format, arguments);
	va_end(arguments);
}

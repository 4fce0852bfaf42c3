// SPDX-License-Identifier: Apache-2.0

#ifndef VG_ERROR_H
#define VG_ERROR_H

// vg_error describes a failure and its fix on one line. vg_error_set truncates longer text.
struct vg_error {
	char text[512];
};

void vg_error_set(struct vg_error *error, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif

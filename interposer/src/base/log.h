// SPDX-License-Identifier: Apache-2.0

// This header declares the log, which writes messages for the user of the process.

#ifndef VG_LOG_H
#define VG_LOG_H

// vg_log_topic is a kind of message. A process writes only its first message of each topic.
enum vg_log_topic {
	VG_LOG_PAGES,
	VG_LOG_DRIVER,
	VG_LOG_MEMORY,
	VG_LOG_CONTEXT,
	VG_LOG_WITHHELD,
	VG_LOG_NAME,
	VG_LOG_IDENTITY,
	VG_LOG_POOLS,
};

// vg_log writes one line to standard error: "nri-vgpu: …".
void vg_log(enum vg_log_topic topic, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif

// SPDX-License-Identifier: Apache-2.0

// This header declares file calls that do not need symbol versions of glibc 2.33, because the
// library must also load with an older glibc.

#ifndef VG_FILE_H
#define VG_FILE_H

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int vg_file_stat(int fd, struct stat *info)
{
	return (int)syscall(SYS_fstat, fd, info);
}

#endif

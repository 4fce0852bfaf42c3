// SPDX-License-Identifier: Apache-2.0

// File calls that glibc 2.33 gave new symbol versions: made without it, so that
// the library loads on older ones.

#ifndef VG_FILE_H
#define VG_FILE_H

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int vg_fstat(int fd, struct stat *info)
{
	return (int)syscall(SYS_fstat, fd, info);
}

#endif

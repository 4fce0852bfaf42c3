// SPDX-License-Identifier: Apache-2.0
#include "mps.h"

#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

uint32_t gs_mps_part(const char *text)
{
	char *end;
	double percent = strtod(text, &end);

	if (end == text || *end || !(percent > 0) || percent > 100)
		return 0;
	return (uint32_t)(percent * 10000 + 0.5);
}

uint64_t gs_mps_size(const char *text, const char **rest)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);
	unsigned shift = *end == 'G' || *end == 'g' ? 30 : *end == 'M' || *end == 'm' ? 20 : 0;

	if (end == text || !shift || value > UINT64_MAX >> shift)
		return 0;
	end++;
	if (*end == 'B' || *end == 'b')
		end++;
	*rest = end;
	return value << shift;
}

int gs_mps_connect(const char *dir, const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd, err;

	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", dir, name) >=
	    (int)sizeof(address.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	err = -errno;
	close(fd);
	return err;
}

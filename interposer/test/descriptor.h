// SPDX-License-Identifier: Apache-2.0

// This header declares functions with which tests pass memory to another process, by descriptors
// over a socket and by pools.

#ifndef VG_TEST_DESCRIPTOR_H
#define VG_TEST_DESCRIPTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "program.h"

enum { posix_fd = 1 };

static inline void send_fd(int to, int fd)
{
	char space[CMSG_SPACE(sizeof fd)] = {0};
	char byte = 0;
	struct iovec data = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	*header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
	memcpy(CMSG_DATA(header), &fd, sizeof fd);
	CHECK(sendmsg(to, &message, 0) == 1);
}

// receive_fd returns -1 if the other side has ended.
static inline int receive_fd(int from)
{
	char space[CMSG_SPACE(sizeof(int))] = {0};
	char byte;
	struct iovec data = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
	int fd = -1;

	if (recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
	return fd;
}

// exported_piece is CUmemPoolPtrExportData.
struct exported_piece {
	char bytes[64];
};

// send_piece sends an allocation of a new pool, and the pool. send_piece returns false if the limit
// has no room.
static inline bool send_piece(int to, size_t bytes)
{
	const CUmemPoolProps properties = {.allocType = 1, .handleTypes = posix_fd,
					   .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
	struct exported_piece piece;
	uint64_t address;
	void *pool;
	int fd;

	CHECK_EQUAL(CALL("cuMemPoolCreate", (void **, const CUmemPoolProps *), &pool, &properties), 0);
	if (CALL("cuMemAllocFromPoolAsync", (uint64_t *, size_t, void *, void *), &address, bytes, pool, NULL))
		return false;
	CHECK_EQUAL(CALL("cuMemPoolExportToShareableHandle", (int *, void *, int, unsigned long long), &fd, pool,
			 posix_fd, 0), 0);
	CHECK_EQUAL(CALL("cuMemPoolExportPointer", (struct exported_piece *, uint64_t), &piece, address), 0);
	send_fd(to, fd);
	close(fd);
	CHECK(write(to, &piece, sizeof piece) == (ssize_t)sizeof piece);
	return true;
}

// receive_pool imports a pool. receive_pool returns false if the other side has ended.
static inline bool receive_pool(int from, void **pool, struct exported_piece *piece)
{
	int fd = receive_fd(from);

	if (fd < 0)
		return false;
	CHECK(read(from, piece, sizeof *piece) == (ssize_t)sizeof *piece);
	CHECK_EQUAL(CALL("cuMemPoolImportFromShareableHandle", (void **, void *, int, unsigned long long), pool,
			 (void *)(uintptr_t)fd, posix_fd, 0), 0);
	close(fd);
	return true;
}

static inline CUresult import_piece(uint64_t *address, void *pool, struct exported_piece *piece)
{
	return CALL("cuMemPoolImportPointer", (uint64_t *, void *, struct exported_piece *), address, pool, piece);
}

#endif

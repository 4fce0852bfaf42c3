// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE
#include "held.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/now.h"

// vg_patience_ns is the longest time for a query, and vg_nap_ns is the time between two attempts
// while the agent's queue is full.
static const uint64_t vg_patience_ns = 18000000;
static const long vg_nap_ns = 500000;

// vg_most_bytes is more memory than any GPU has. NVML reports an unavailable value as a number with
// all bits set.
static const uint64_t vg_most_bytes = UINT64_C(1) << 56;

enum { vg_message_version = 1 };

// These messages match internal/registry.
struct vg_question {
	char magic[4];
	uint16_t version;
	uint16_t size;
	uint32_t slot;
	uint32_t pid;
};

struct vg_record {
	uint8_t uuid[16];
	uint64_t bytes;
};

struct vg_answer_head {
	char magic[4];
	uint16_t version;
	uint16_t size;
	uint32_t count;
	uint32_t flags;
};

struct vg_message {
	struct vg_answer_head head;
	struct vg_record records[VG_MAX_DEVICES];
};

_Static_assert(sizeof(struct vg_question) == 16, "a question");
_Static_assert(sizeof(struct vg_answer_head) == 16, "the head of an answer");
_Static_assert(sizeof(struct vg_record) == 24, "a record of an answer");

static bool vg_connect_until(int fd, const struct sockaddr_un *address, uint64_t deadline)
{
	struct timespec nap = {.tv_nsec = vg_nap_ns};

	while (connect(fd, (const struct sockaddr *)address, sizeof *address)) {
		if (errno != EAGAIN || vg_now() + (uint64_t)vg_nap_ns > deadline)
			return false;
		nanosleep(&nap, NULL);
	}
	return true;
}

static bool vg_wait_until(int fd, uint64_t deadline)
{
	struct pollfd waited = {.fd = fd, .events = POLLIN};

	for (;;) {
		uint64_t now = vg_now();
		uint64_t left = now < deadline ? deadline - now : 0;
		struct timespec most = {.tv_nsec = (long)left};
		int ready = ppoll(&waited, 1, &most, NULL);

		if (ready >= 0 || errno != EINTR)
			return ready > 0;
	}
}

// vg_understand parses an answer of this length. vg_understand returns false if the message is not
// valid.
static bool vg_understand(const struct vg_message *message, size_t length, struct vg_held *held)
{
	const struct vg_answer_head *head = &message->head;

	if (length < sizeof *head || length > sizeof *message ||
	    memcmp(head->magic, "NVGH", sizeof head->magic) != 0 ||
	    head->version != vg_message_version || head->size != length ||
	    head->count != (length - sizeof *head) / sizeof *message->records ||
	    (length - sizeof *head) % sizeof *message->records)
		return false;
	held->count = 0;
	for (uint32_t i = 0; i < head->count; i++) {
		if (!message->records[i].bytes || message->records[i].bytes > vg_most_bytes)
			continue; // the agent does not know the memory on this GPU
		memcpy(held->gpus[held->count].uuid, message->records[i].uuid, sizeof held->gpus->uuid);
		held->gpus[held->count].bytes = message->records[i].bytes;
		held->count++;
	}
	return true;
}

static enum vg_held_result vg_converse(int fd, const struct sockaddr_un *address, uint32_t slot,
				       struct vg_held *held)
{
	const struct vg_question question = {
		.magic = {'N', 'V', 'G', 'H'}, .version = vg_message_version,
		.size = sizeof question, .slot = slot, .pid = (uint32_t)getpid(),
	};
	uint64_t deadline = vg_now() + vg_patience_ns;
	struct vg_message message;
	ssize_t length;

	if (!vg_connect_until(fd, address, deadline))
		return errno == EAGAIN ? VG_HELD_SILENT : VG_HELD_NOBODY;
	if (send(fd, &question, sizeof question, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof question ||
	    !vg_wait_until(fd, deadline))
		return VG_HELD_SILENT;
	length = recv(fd, &message, sizeof message, MSG_DONTWAIT | MSG_TRUNC);
	if (length <= 0 || !vg_understand(&message, (size_t)length, held))
		return VG_HELD_SILENT;
	return VG_HELD_ANSWERED;
}

enum vg_held_result vg_held_ask(const char *path, uint32_t slot, struct vg_held *held)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	enum vg_held_result result;
	int saved = errno;
	int fd;

	held->count = 0;
	if (!*path || strlen(path) >= sizeof address.sun_path)
		return VG_HELD_NOBODY;
	memcpy(address.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		errno = saved;
		return VG_HELD_NOBODY;
	}
	result = vg_converse(fd, &address, slot, held);
	close(fd);
	errno = saved;
	return result;
}

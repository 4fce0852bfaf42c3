// SPDX-License-Identifier: Apache-2.0

// A registration opens a connection, sends one packet and closes the connection. The kernel
// identifies the process to the agent, and notifies the agent when the process ends. Therefore, the
// process needs no descriptor that a program could close and reuse, or that a fork would share. No
// process needs to wait for a restarted agent.

#define _GNU_SOURCE
#include "registration.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"

// vg_attempts is the number of attempts while the agent's queue is full, with a pause of
// vg_attempt_nap_ns after each attempt: a millisecond in all.
static const int vg_attempts = 5;
static const long vg_attempt_nap_ns = 200000;

// This message matches internal/registry.
struct vg_registration {
	char magic[4];
	uint16_t version;
	uint16_t size;
	uint32_t slot;
	uint32_t pid;
};

_Static_assert(sizeof(struct vg_registration) == 16, "the message of a process");

static int vg_connect(int fd, const struct sockaddr_un *address)
{
	struct timespec nap = {.tv_nsec = vg_attempt_nap_ns};

	for (int i = 0; i < vg_attempts; i++) {
		if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0)
			return 0;
		if (errno != EAGAIN)
			return -1;
		nanosleep(&nap, NULL);
	}
	return -1;
}

static void vg_tell_agent(const struct sockaddr_un *address, uint32_t slot)
{
	struct vg_registration said = {
		.magic = {'N', 'V', 'G', 'R'}, .version = 1, .size = sizeof said,
		.slot = slot, .pid = (uint32_t)getpid(),
	};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return;
	if (vg_connect(fd, address) == 0)
		send(fd, &said, sizeof said, MSG_NOSIGNAL | MSG_DONTWAIT);
	close(fd);
}

void vg_registration_path(const char *dir, char path[vg_agent_path_size])
{
	vg_text_join(path, vg_agent_path_size, dir, "/agent/agent.sock");
}

void vg_registration_send(const char *path, uint32_t slot)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int saved = errno;

	_Static_assert(sizeof address.sun_path == vg_agent_path_size, "the path of a socket");
	if (!*path)
		return;
	memcpy(address.sun_path, path, strnlen(path, sizeof address.sun_path - 1));
	vg_tell_agent(&address, slot);
	errno = saved;
}

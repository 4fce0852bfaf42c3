// SPDX-License-Identifier: Apache-2.0
/* This file implements the daemon's servers: a process of the same program for each user. */
#include "program.h"

#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_MS 10000 /* for a server to start */

static _Noreturn void become_server(int fd, const struct terms *terms)
{
	char number[16], text[512];
	char *arguments[] = {"nvidia-cuda-mps-server", number, text, NULL};
	size_t at = (size_t)snprintf(text, sizeof(text), "%u", terms->part_ppm);

	for (uint32_t i = 0; i < GS_MAX_GPUS; i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, ",%" PRIu64, terms->limits[i]);
	(void)snprintf(number, sizeof(number), "%d", fd);
	(void)fcntl(fd, F_SETFD, 0);
	execv("/proc/self/exe", arguments);
	_exit(127);
}

static bool comes_up(const struct server *server)
{
	struct pollfd word = {.fd = server->fd, .events = POLLIN};
	char ready = 0;

	return poll(&word, 1, PATIENCE_MS) == 1 && recv(server->fd, &ready, 1, 0) == 1;
}

void control_forget_server(struct control *control, struct server *server)
{
	write_log(control->logs, "control", "Server %d exited", (int)server->pid);
	close(server->fd);
	*server = (struct server){0};
}

static struct server *new_server(struct control *control, struct server *server, uid_t uid)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
		return NULL;
	*server = (struct server){.uid = uid, .fd = ends[0], .terms = control->defaults};
	server->pid = fork();
	if (server->pid == 0)
		become_server(ends[1], &server->terms);
	close(ends[1]);
	if (server->pid > 0 && comes_up(server)) {
		write_log(control->logs, "control", "Starting new server %d for user %u", (int)server->pid, uid);
		return server;
	}
	control_forget_server(control, server);
	return NULL;
}

struct server *control_server(struct control *control, uid_t uid)
{
	struct server *vacant = NULL;

	for (int i = 0; i < MAX_SERVERS; i++) {
		struct server *server = &control->servers[i];

		if (server->pid && server->uid == uid)
			return server;
		if (!server->pid && !vacant)
			vacant = server;
	}
	return vacant ? new_server(control, vacant, uid) : NULL;
}

int control_order(const struct server *server, const struct order *order, int fd)
{
	char space[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec data = {.iov_base = (void *)(uintptr_t)order, .iov_len = sizeof(*order)};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};

	if (fd >= 0) {
		struct cmsghdr *part;

		message.msg_control = space;
		message.msg_controllen = sizeof(space);
		part = CMSG_FIRSTHDR(&message);
		part->cmsg_level = SOL_SOCKET;
		part->cmsg_type = SCM_RIGHTS;
		part->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(part), &fd, sizeof(fd));
	}
	return sendmsg(server->fd, &message, MSG_NOSIGNAL) < 0 ? -1 : 0;
}

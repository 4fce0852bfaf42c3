// SPDX-License-Identifier: Apache-2.0
/*
 * This file implements the server, which holds the GPUs' shared context. When the server ends, all
 * clients of the server end. The timeline runs the clients' work side by side.
 */
#include "program.h"

#include <ctype.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONTEXT_BYTES (UINT64_C(32) << 20) /* about the size on a real server */

struct client {
	int fd;
	pid_t pid;
};

static struct {
	struct gs_handle handle;
	int control;
	struct terms terms;
	uint32_t gpus[GS_MAX_GPUS]; /* by the daemon's ordinals, index in the state */
	uint32_t gpu_count;
	struct client clients[MAX_CLIENTS];
	int client_count;
	bool quit;
	uint64_t quit_ns; /* when clients must have ended, UINT64_MAX: no limit */
} server;

/* ---- the served GPUs ---- */

static int find_gpu(const char *name)
{
	const struct gs_state *state = server.handle.state;

	if (isdigit((unsigned char)*name))
		return (uint32_t)atoi(name) < state->gpu_count ? atoi(name) : -1;
	for (uint32_t g = 0; g < state->gpu_count; g++) {
		char text[GS_UUID_SIZE];

		gs_uuid_text(&state->gpus[g], text);
		if (*name && strncasecmp(text, name, strlen(name)) == 0)
			return (int)g;
	}
	return -1;
}

/* find_gpus finds all GPUs, or the GPUs that CUDA_VISIBLE_DEVICES names before its first bad entry.
 */
static void find_gpus(void)
{
	const char *list = getenv("CUDA_VISIBLE_DEVICES");
	char copy[1024], *rest = copy, *name;

	if (!list) {
		while (server.gpu_count < server.handle.state->gpu_count) {
			server.gpus[server.gpu_count] = server.gpu_count;
			server.gpu_count++;
		}
		return;
	}
	(void)snprintf(copy, sizeof(copy), "%s", list);
	while (server.gpu_count < GS_MAX_GPUS && (name = strtok_r(rest, ",", &rest))) {
		int gpu = find_gpu(name);

		if (gpu < 0)
			return;
		server.gpus[server.gpu_count++] = (uint32_t)gpu;
	}
}

/* take_gpus charges the memory of the shared context on each GPU. */
static bool take_gpus(void)
{
	struct gs_proc *me = &server.handle.state->procs[server.handle.id];
	bool granted = true;

	gs_lock(&server.handle);
	me->mps = GS_MPS_SERVER;
	for (uint32_t i = 0; i < server.gpu_count && granted; i++) {
		granted = gs_charge(&server.handle, server.gpus[i], CONTEXT_BYTES);
		if (granted)
			me->gpu[server.gpus[i]].contexts = 1;
	}
	gs_unlock(&server.handle);
	return granted && server.gpu_count;
}

/* ---- clients ---- */

static void welcome(int fd)
{
	struct gs_mps_welcome answer = {.magic = GS_MPS_MAGIC, .part_ppm = server.terms.part_ppm};

	for (uint32_t i = 0; i < server.gpu_count; i++) {
		answer.gpus |= UINT32_C(1) << server.gpus[i];
		answer.limits[server.gpus[i]] = server.terms.limits[i];
	}
	(void)send(fd, &answer, sizeof(answer), MSG_NOSIGNAL);
}

static void add_client(int fd, pid_t pid)
{
	if (fd < 0)
		return;
	if (server.client_count == MAX_CLIENTS) {
		close(fd);
		return;
	}
	server.clients[server.client_count++] = (struct client){fd, pid};
	welcome(fd);
	write_log(mps_logs(), "server", "New client %d connected", (int)pid);
}

static void drop_client(int index)
{
	write_log(mps_logs(), "server", "Client %d disconnected", (int)server.clients[index].pid);
	close(server.clients[index].fd);
	server.clients[index] = server.clients[--server.client_count];
}

static void list_clients(void)
{
	char text[TEXT_SIZE] = "";
	size_t at = 0;

	for (int i = 0; i < server.client_count && at + 16 < sizeof(text); i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%d\n", (int)server.clients[i].pid);
	/* An empty message would look like the end of the connection. */
	(void)send(server.control, text, at ? at : 1, MSG_NOSIGNAL);
}

/* ---- the daemon's orders ---- */

static bool receive(struct order *order, int *fd)
{
	char space[CMSG_SPACE(sizeof(int))];
	struct iovec data = {.iov_base = order, .iov_len = sizeof(*order)};
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = space,
				 .msg_controllen = sizeof(space)};
	struct cmsghdr *part;

	*fd = -1;
	if (recvmsg(server.control, &message, MSG_CMSG_CLOEXEC) != sizeof(*order))
		return false; /* the daemon has ended */
	part = CMSG_FIRSTHDR(&message);
	if (part && part->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(part), sizeof(*fd));
	return true;
}

static bool obey(void)
{
	struct order order;
	int fd;

	if (!receive(&order, &fd))
		return false;
	switch (order.kind) {
	case ORDER_CLIENT:
		add_client(fd, order.pid);
		break;
	case ORDER_LIST:
		list_clients();
		break;
	case ORDER_PART:
		server.terms.part_ppm = (uint32_t)order.value;
		break;
	case ORDER_LIMIT:
		server.terms.limits[order.device] = order.value;
		break;
	default:
		server.quit = true;
		server.quit_ns = order.seconds < 0 ? UINT64_MAX :
						     gs_now() + (uint64_t)order.seconds * UINT64_C(1000000000);
	}
	return true;
}

static bool over(void)
{
	return server.quit && (server.client_count == 0 || gs_now() >= server.quit_ns);
}

static void wait_for_word(struct pollfd *words)
{
	words[0] = (struct pollfd){.fd = server.control, .events = POLLIN};
	for (int i = 0; i < server.client_count; i++)
		words[i + 1] = (struct pollfd){.fd = server.clients[i].fd, .events = POLLIN};
	(void)poll(words, (nfds_t)server.client_count + 1, server.quit ? 100 : -1);
}

int server_run(int control, const struct terms *terms)
{
	static struct pollfd words[MAX_CLIENTS + 1];
	bool obeyed = true;

	server.control = control;
	server.terms = *terms;
	if (gs_open(&server.handle, gs_path(), GS_PROCESS) != 0)
		return 1;
	find_gpus();
	if (!take_gpus()) {
		write_log(mps_logs(), "server", "Failed to take the GPUs");
		return 1;
	}
	(void)send(control, "r", 1, MSG_NOSIGNAL);
	write_log(mps_logs(), "server", "Active");
	while (obeyed && !over()) {
		wait_for_word(words);
		for (int i = server.client_count - 1; i >= 0; i--)
			if (words[i + 1].revents)
				drop_client(i);
		if (words[0].revents)
			obeyed = obey();
	}
	write_log(mps_logs(), "server", "Exit");
	gs_close(&server.handle);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0

// agent serves the agent's socket of a container. agent reports the memory that a process
// physically holds, from the simulator's state. The agent on a host reports this memory from NVML.
// agent can also misbehave.
//
// agent [MODE] STATE DIR…
//
// MODE is:
//
//   -honest   answers with the memory of the asking process (the default)
//   -blind    answers that the memory is unknown
//   -hang     never answers, and keeps the connection
//   -deaf     never accepts a connection
//   -late     answers 100 ms too late
//   -garbage  answers with an invalid message
//   -close    closes the connection without an answer
//   -zero     answers with 0 bytes, -ones with all bits set: both answers mean "unknown"

#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../../gpusim/src/state.h"

enum { most_sockets = 64 };

struct record {
	uint8_t uuid[16];
	uint64_t bytes;
};

struct message {
	char magic[4];
	uint16_t version;
	uint16_t size;
	uint32_t count;
	uint32_t flags;
	struct record records[GS_MAX_GPUS];
};

static struct gs_handle machine;
static const char *mode = "-honest";

static int serve(const char *dir)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s/agent", dir);
	mkdir(address.sun_path, 0755);
	if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s/agent/agent.sock", dir) >=
	    sizeof address.sun_path)
		return -1;
	unlink(address.sun_path);
	if (bind(fd, (const struct sockaddr *)&address, sizeof address) ||
	    listen(fd, strcmp(mode, "-deaf") == 0 ? 0 : 128))
		return -1;
	return fd;
}

static void measure(pid_t asker, struct message *answer)
{
	struct gs_proc *proc;
	uint32_t cursor = 0;

	gs_lock(&machine);
	while ((proc = gs_proc_next(&machine, &cursor))) {
		pid_t pid = 0;

		if (!gs_proc_alive(&machine, gs_slot(&machine, proc), &pid) || pid != asker)
			continue;
		for (uint32_t g = 0; g < machine.state->gpu_count; g++) {
			struct record *record = &answer->records[answer->count];

			if (!proc->gpu[g].contexts || !proc->gpu[g].bytes)
				continue;
			memcpy(record->uuid, machine.state->gpus[g].uuid, sizeof record->uuid);
			record->bytes = proc->gpu[g].bytes;
			answer->count++;
		}
	}
	gs_unlock(&machine);
}

static void misbehave(struct message *answer)
{
	const struct timespec late = {.tv_nsec = 100000000};

	if (strcmp(mode, "-late") == 0)
		nanosleep(&late, NULL);
	if (strcmp(mode, "-blind") == 0)
		answer->count = 0;
	for (uint32_t i = 0; i < answer->count; i++) {
		if (strcmp(mode, "-zero") == 0)
			answer->records[i].bytes = 0;
		if (strcmp(mode, "-ones") == 0)
			answer->records[i].bytes = UINT64_MAX;
	}
	if (strcmp(mode, "-garbage") == 0)
		answer->count = 1000;
}

// answer returns true if the connection must be closed.
static int answer(int fd)
{
	struct message message = {.magic = {'N', 'V', 'G', 'H'}, .version = 1};
	struct ucred who = {0};
	socklen_t size = sizeof who;
	char question[64];
	ssize_t length = recv(fd, question, sizeof question, 0);

	if (length != 16 || memcmp(question, "NVGH", 4) != 0 || strcmp(mode, "-close") == 0)
		return 1; // a registration
	if (strcmp(mode, "-hang") == 0)
		return 0;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size))
		return 1;
	measure(who.pid, &message);
	misbehave(&message);
	message.size = (uint16_t)(16 + sizeof *message.records * (message.count % GS_MAX_GPUS));
	send(fd, &message, message.size, MSG_NOSIGNAL | MSG_DONTWAIT);
	return 1;
}

int main(int argc, char **argv)
{
	struct pollfd sockets[most_sockets];
	nfds_t count = 0;

	if (argc > 1 && argv[1][0] == '-') {
		mode = argv[1];
		argv++;
		argc--;
	}
	if (argc < 3 || argc - 2 > most_sockets || gs_open(&machine, argv[1], GS_OBSERVER)) {
		fprintf(stderr, "usage: agent [MODE] STATE DIR...\n");
		return 64;
	}
	for (int i = 2; i < argc; i++) {
		sockets[count] = (struct pollfd){.fd = serve(argv[i]), .events = POLLIN};
		if (sockets[count++].fd < 0) {
			perror("agent");
			return 1;
		}
	}
	printf("serving\n");
	fflush(stdout);
	for (;;) {
		if (strcmp(mode, "-deaf") == 0) {
			pause();
			continue;
		}
		if (poll(sockets, count, -1) < 0)
			continue;
		for (nfds_t i = 0; i < count; i++) {
			int fd = sockets[i].revents ? accept4(sockets[i].fd, NULL, NULL, SOCK_CLOEXEC) : -1;

			if (fd >= 0 && answer(fd))
				close(fd);
		}
	}
}

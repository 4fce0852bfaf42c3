// SPDX-License-Identifier: Apache-2.0
/* This file implements nvidia-cuda-mps-control: the command line, and the commands of a user. */
#include "program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* ask sends a line to the daemon and prints its answer. */
static int ask(const char *line)
{
	char answer[TEXT_SIZE];
	ssize_t size;
	int fd = gs_mps_connect(mps_pipes(), GS_MPS_PRIVILEGED);

	if (fd < 0) {
		fprintf(stderr, fd == -EACCES ? "Permission denied to the MPS control daemon\n" :
						"Cannot find MPS control daemon process\n");
		return 1;
	}
	if (send(fd, line, strlen(line) + 1, MSG_NOSIGNAL) < 0)
		fprintf(stderr, "Failed to send the command to the MPS control daemon\n");
	size = recv(fd, answer, sizeof(answer), 0);
	if (size > 0)
		(void)fwrite(answer, 1, (size_t)size, stdout);
	close(fd);
	return 0;
}

static int interact(void)
{
	char line[512];
	int status = 0;

	while (!status && fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		if (*line)
			status = ask(line);
	}
	return status;
}

/*
 * start_daemon starts the daemon in the background. The caller's process ends when the daemon
 * accepts clients.
 */
static int start_daemon(void)
{
	int pipes[2];
	char ready = 0;
	pid_t child;

	if (pipe(pipes) != 0)
		return 1;
	child = fork();
	if (child < 0)
		return 1;
	if (child == 0) {
		close(pipes[0]);
		(void)setsid();
		_exit(control_run(pipes[1]));
	}
	close(pipes[1]);
	return read(pipes[0], &ready, 1) == 1 ? 0 : 1;
}

/*
 * serve runs the program as a server. The arguments hold the connection and the terms as text.
 */
static int serve(char **arguments)
{
	struct terms terms = {0};
	const char *text = arguments[2];

	(void)prctl(PR_SET_NAME, "nvidia-cuda-mps-server");
	terms.part_ppm = (uint32_t)strtoul(text, (char **)&text, 10);
	for (uint32_t i = 0; i < GS_MAX_GPUS && *text == ','; i++)
		terms.limits[i] = strtoull(text + 1, (char **)&text, 10);
	return server_run(atoi(arguments[1]), &terms);
}

int main(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[0], "nvidia-cuda-mps-server") == 0)
		return serve(argv);
	if (argc == 1)
		return interact();
	if (argc == 2 && strcmp(argv[1], "-d") == 0)
		return start_daemon();
	if (argc == 2 && strcmp(argv[1], "-f") == 0)
		return control_run(-1);
	fprintf(stderr, "usage: nvidia-cuda-mps-control [-d | -f]\n"
			"-d starts the daemon in the background, -f in the foreground. Without either\n"
			"option, the program reads commands from standard input: get_server_list, quit ...\n");
	return 1;
}

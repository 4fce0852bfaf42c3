// SPDX-License-Identifier: Apache-2.0
/* This file implements the control daemon, which passes clients to the server of their user. */
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORD_MS 1000 /* for a new connection to send its request */

static void path_in(const struct control *control, const char *name, char path[128])
{
	(void)snprintf(path, 128, "%s/%s", control->dir, name);
}

static int listen_at(const struct control *control, const char *name, mode_t mode)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char path[128];
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	path_in(control, name, path);
	if (fd < 0 || strlen(path) >= sizeof(address.sun_path))
		return -1;
	memcpy(address.sun_path, path, strlen(path) + 1);
	(void)unlink(path);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 || chmod(path, mode) != 0 ||
	    listen(fd, 128) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/*
 * write_files writes the files that a real daemon has beside its sockets, for programs that check
 * the files.
 */
static int write_files(const struct control *control)
{
	char path[128];
	FILE *pid;

	path_in(control, "log", path);
	(void)unlink(path);
	if (mkfifo(path, 0777) != 0)
		return -1;
	path_in(control, "nvidia-cuda-mps-control.pid", path);
	pid = fopen(path, "we");
	if (!pid)
		return -1;
	fprintf(pid, "%d", (int)getpid());
	return fclose(pid);
}

static int make_dir(const char *dir)
{
	return mkdir(dir, 0755) == 0 || errno == EEXIST ? 0 : -1;
}

/* open_control takes the directory. open_control fails if another daemon holds the directory. */
static int open_control(struct control *control)
{
	char path[128];

	*control = (struct control){.quit = -1, .defaults.part_ppm = GS_DEMAND_ALL};
	(void)snprintf(control->dir, sizeof(control->dir), "%s", mps_pipes());
	(void)snprintf(control->logs, sizeof(control->logs), "%s", mps_logs());
	if (make_dir(control->dir) != 0 || make_dir(control->logs) != 0) {
		fprintf(stderr, "Failed to make %s and %s: %s\n", control->dir, control->logs, strerror(errno));
		return -1;
	}
	path_in(control, "control_lock", path);
	control->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (control->lock < 0 || flock(control->lock, LOCK_EX | LOCK_NB) != 0) {
		fprintf(stderr, "An instance of this daemon is already running\n");
		return -1;
	}
	control->clients = listen_at(control, GS_MPS_CONTROL, 0666);
	control->privileged = listen_at(control, GS_MPS_PRIVILEGED, 0755);
	if (control->clients < 0 || control->privileged < 0 || write_files(control) != 0) {
		fprintf(stderr, "Failed to open the pipes in %s: %s\n", control->dir, strerror(errno));
		return -1;
	}
	return 0;
}

/* ---- connections ---- */

/* accept_with_word accepts a connection and reads its first message. */
static int accept_with_word(int listener, void *word, size_t room, ssize_t *size)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	struct pollfd ready = {.fd = fd, .events = POLLIN};

	if (fd < 0)
		return -1;
	*size = poll(&ready, 1, WORD_MS) == 1 ? recv(fd, word, room, 0) : -1;
	if (*size > 0)
		return fd;
	close(fd);
	return -1;
}

static void refuse(int fd)
{
	const struct gs_mps_welcome no = {.magic = GS_MPS_MAGIC, .error = 807 /* server not ready */};

	(void)send(fd, &no, sizeof(no), MSG_NOSIGNAL);
}

static void admit_client(struct control *control)
{
	struct order order = {.kind = ORDER_CLIENT};
	struct gs_mps_hello hello;
	struct server *server;
	struct ucred who;
	socklen_t length = sizeof(who);
	ssize_t size;
	int fd = accept_with_word(control->clients, &hello, sizeof(hello), &size);

	if (fd < 0)
		return;
	if (size != sizeof(hello) || hello.magic != GS_MPS_MAGIC ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) {
		close(fd);
		return;
	}
	server = control->quit < 0 ? control_server(control, who.uid) : NULL;
	order.pid = who.pid;
	if (!server || control_order(server, &order, fd) != 0)
		refuse(fd);
	write_log(control->logs, "control", "User %u's client %d %s", who.uid, (int)who.pid,
		  server ? "is served" : "is refused");
	close(fd);
}

static void begin_quit(struct control *control, int fd, int seconds)
{
	const struct order order = {.kind = ORDER_QUIT, .seconds = seconds};

	control->quit = fd;
	for (int i = 0; i < MAX_SERVERS; i++)
		if (control->servers[i].pid)
			(void)control_order(&control->servers[i], &order, -1);
}

static void obey(struct control *control)
{
	char line[512], answer[TEXT_SIZE] = "";
	int seconds;
	ssize_t size;
	int fd = accept_with_word(control->privileged, line, sizeof(line) - 1, &size);
	FILE *out = fd >= 0 ? fmemopen(answer, sizeof(answer), "w") : NULL;

	if (!out)
		return;
	line[size] = '\0';
	write_log(control->logs, "control", "NEW UI: %s", line);
	if (!control_command(control, line, out, &seconds)) {
		fclose(out);
		begin_quit(control, fd, seconds);
		return;
	}
	fclose(out);
	(void)send(fd, answer, strlen(answer), MSG_NOSIGNAL);
	close(fd);
}

static bool has_servers(const struct control *control)
{
	for (int i = 0; i < MAX_SERVERS; i++)
		if (control->servers[i].pid)
			return true;
	return false;
}

/* wait_for_word waits for connections, and for the end of servers. */
static void wait_for_word(struct control *control)
{
	struct pollfd words[2 + MAX_SERVERS] = {
		{.fd = control->clients, .events = POLLIN},
		{.fd = control->privileged, .events = POLLIN},
	};

	for (int i = 0; i < MAX_SERVERS; i++) /* the end of a server is the only event */
		words[2 + i] = (struct pollfd){.fd = control->servers[i].pid ? control->servers[i].fd : -1,
					       .events = POLLIN};
	if (poll(words, 2 + MAX_SERVERS, -1) < 0)
		return;
	for (int i = 0; i < MAX_SERVERS; i++)
		if (words[2 + i].revents)
			control_forget_server(control, &control->servers[i]);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	if (words[0].revents)
		admit_client(control);
	if (words[1].revents)
		obey(control);
}

int control_run(int ready)
{
	struct control control;
	char path[128];

	(void)signal(SIGPIPE, SIG_IGN);
	if (open_control(&control) != 0)
		return 1;
	write_log(control.logs, "control", "Start");
	if (ready >= 0) {
		(void)!write(ready, "", 1);
		close(ready);
	}
	while (control.quit < 0 || has_servers(&control))
		wait_for_word(&control);
	write_log(control.logs, "control", "Exit");
	path_in(&control, "nvidia-cuda-mps-control.pid", path);
	(void)unlink(path);
	/*
	 * The client that requested the end may start another daemon as soon as the client's connection
	 * closes. The daemon first releases the lock, because an exit closes files in any order.
	 */
	(void)flock(control.lock, LOCK_UN);
	return 0;
}

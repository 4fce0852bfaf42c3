// SPDX-License-Identifier: Apache-2.0
/* This file implements the commands of the control daemon. */
#include "program.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define MAX_WORDS 5

struct call {
	struct control *control;
	FILE *out;
	char *words[MAX_WORDS];
	int count; /* of words, including the command's name */
};

/* server_named returns the server whose pid is in a word. */
static struct server *server_named(const struct call *call, int word)
{
	long pid = word < call->count ? strtol(call->words[word], NULL, 10) : 0;

	for (int i = 0; pid > 0 && i < MAX_SERVERS; i++)
		if (call->control->servers[i].pid == (pid_t)pid)
			return &call->control->servers[i];
	fprintf(call->out, "Server %s not found\n", word < call->count ? call->words[word] : "");
	return NULL;
}

static void get_server_list(struct call *call)
{
	for (int i = 0; i < MAX_SERVERS; i++)
		if (call->control->servers[i].pid)
			fprintf(call->out, "%d\n", (int)call->control->servers[i].pid);
}

static void get_server_status(struct call *call)
{
	if (server_named(call, 1))
		fprintf(call->out, "ACTIVE\n");
}

static void start_server(struct call *call)
{
	if (call->count != 3 || strcmp(call->words[1], "-uid") != 0)
		fprintf(call->out, "usage: start_server -uid UID\n");
	else if (!control_server(call->control, (uid_t)strtoul(call->words[2], NULL, 10)))
		fprintf(call->out, "Failed to start a server\n");
}

static void list_clients(struct call *call, const struct server *server)
{
	const struct order order = {.kind = ORDER_LIST};
	char answer[TEXT_SIZE];
	ssize_t size;

	if (control_order(server, &order, -1) != 0)
		return;
	size = recv(server->fd, answer, sizeof(answer), 0);
	if (size > 0)
		(void)fwrite(answer, 1, (size_t)size, call->out);
}

static void get_client_list(struct call *call)
{
	const struct server *server = server_named(call, 1);

	if (server)
		list_clients(call, server);
}

static void print_part(struct call *call, const struct terms *terms)
{
	fprintf(call->out, "%.1f\n", terms->part_ppm / 1e4);
}

static bool read_part(struct call *call, int word, uint32_t *part)
{
	*part = word < call->count ? gs_mps_part(call->words[word]) : 0;
	if (!*part)
		fprintf(call->out, "Active thread percentage must be above 0 and at most 100\n");
	return *part != 0;
}

static void get_default_part(struct call *call)
{
	print_part(call, &call->control->defaults);
}

static void set_default_part(struct call *call)
{
	uint32_t part;

	if (!read_part(call, 1, &part))
		return;
	call->control->defaults.part_ppm = part;
	print_part(call, &call->control->defaults);
}

static void get_part(struct call *call)
{
	const struct server *server = server_named(call, 1);

	if (server)
		print_part(call, &server->terms);
}

static void set_part(struct call *call)
{
	struct server *server = server_named(call, 1);
	struct order order = {.kind = ORDER_PART};
	uint32_t part;

	if (!server || !read_part(call, 2, &part))
		return;
	order.value = server->terms.part_ppm = part;
	if (control_order(server, &order, -1) == 0)
		print_part(call, &server->terms);
}

static bool read_device(struct call *call, int word, uint32_t *device)
{
	char *end = NULL;

	*device = word < call->count ? (uint32_t)strtoul(call->words[word], &end, 10) : GS_MAX_GPUS;
	if (end && !*end && *device < GS_MAX_GPUS)
		return true;
	fprintf(call->out, "Invalid device\n");
	return false;
}

static bool read_limit(struct call *call, int word, uint64_t *bytes)
{
	const char *rest = "";

	*bytes = word < call->count ? gs_mps_size(call->words[word], &rest) : 0;
	if (*bytes && !*rest)
		return true;
	fprintf(call->out, "Invalid pinned memory limit\n");
	return false;
}

static void print_limit(struct call *call, uint64_t bytes)
{
	fprintf(call->out, "%" PRIu64 "M\n", bytes >> 20);
}

static void get_default_limit(struct call *call)
{
	uint32_t device;

	if (read_device(call, 1, &device))
		print_limit(call, call->control->defaults.limits[device]);
}

static void set_default_limit(struct call *call)
{
	uint32_t device;
	uint64_t bytes;

	if (!read_device(call, 1, &device) || !read_limit(call, 2, &bytes))
		return;
	call->control->defaults.limits[device] = bytes;
	print_limit(call, bytes);
}

static void get_limit(struct call *call)
{
	const struct server *server = server_named(call, 1);
	uint32_t device;

	if (server && read_device(call, 2, &device))
		print_limit(call, server->terms.limits[device]);
}

static void set_limit(struct call *call)
{
	struct server *server = server_named(call, 1);
	struct order order = {.kind = ORDER_LIMIT};

	if (!server || !read_device(call, 2, &order.device) || !read_limit(call, 3, &order.value))
		return;
	server->terms.limits[order.device] = order.value;
	if (control_order(server, &order, -1) == 0)
		print_limit(call, order.value);
}

static const struct {
	const char *name;
	void (*run)(struct call *call);
} commands[] = {
	{"get_server_list", get_server_list},
	{"get_server_status", get_server_status},
	{"start_server", start_server},
	{"get_client_list", get_client_list},
	{"get_default_active_thread_percentage", get_default_part},
	{"set_default_active_thread_percentage", set_default_part},
	{"get_active_thread_percentage", get_part},
	{"set_active_thread_percentage", set_part},
	{"get_default_device_pinned_mem_limit", get_default_limit},
	{"set_default_device_pinned_mem_limit", set_default_limit},
	{"get_device_pinned_mem_limit", get_limit},
	{"set_device_pinned_mem_limit", set_limit},
};

/*
 * quit_after parses "quit" or "quit -t SECONDS". quit_after returns the seconds that clients have
 * to end.
 */
static int quit_after(const struct call *call)
{
	if (call->count == 3 && strcmp(call->words[1], "-t") == 0)
		return atoi(call->words[2]);
	return -1;
}

bool control_command(struct control *control, char *line, FILE *out, int *seconds)
{
	struct call call = {.control = control, .out = out};
	char *rest = line, *word;

	while (call.count < MAX_WORDS && (word = strtok_r(rest, " \t\r\n", &rest)))
		call.words[call.count++] = word;
	if (call.count == 0)
		return true;
	if (strcmp(call.words[0], "quit") == 0) {
		*seconds = quit_after(&call);
		return false;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (strcmp(commands[i].name, call.words[0]) != 0)
			continue;
		commands[i].run(&call);
		return true;
	}
	fprintf(out, "Unrecognized command: %s\n", call.words[0]);
	return true;
}

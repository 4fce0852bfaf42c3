// SPDX-License-Identifier: Apache-2.0
/*
 * This header covers the simulated nvidia-cuda-mps-control: the daemon, its server, and the
 * commands that the program reads from its standard input.
 */
#ifndef GPUSIM_MPS_PROGRAM_H
#define GPUSIM_MPS_PROGRAM_H

#include "mps.h"

#include <stdio.h>

#define MAX_SERVERS 8
#define MAX_CLIENTS 1024 /* connections; GPUs can serve fewer */
#define TEXT_SIZE 8192

/* order_kind holds the orders of the daemon to a server. */
enum order_kind { ORDER_CLIENT, ORDER_LIST, ORDER_PART, ORDER_LIMIT, ORDER_QUIT };

struct order {
	uint32_t kind;
	int32_t pid;     /* of a client, whose connection accompanies the order */
	uint32_t device; /* by the daemon's CUDA_VISIBLE_DEVICES */
	int32_t seconds; /* for clients to end, negative: no limit */
	uint64_t value;
};

/* terms are the limits of new clients, by the daemon's devices. */
struct terms {
	uint32_t part_ppm;
	uint64_t limits[GS_MAX_GPUS];
};

struct server {
	pid_t pid; /* 0: none */
	uid_t uid;
	int fd;
	struct terms terms;
};

struct control {
	char dir[96];  /* of the pipes */
	char logs[96]; /* of the logs */
	int lock, clients, privileged;
	struct terms defaults;
	struct server servers[MAX_SERVERS];
	int quit; /* the connection of the client that requested the end, -1: none */
};

/* control_run runs the daemon until a client quits it. control_run writes to `ready` when the
 * daemon accepts clients. */
int control_run(int ready);

/* control_server returns the server of a user, and starts a server if the user has none. On
 * failure, control_server returns NULL. */
struct server *control_server(struct control *control, uid_t uid);

/* control_forget_server removes a server that has ended. */
void control_forget_server(struct control *control, struct server *server);

/* control_order sends a server an order, with a connection if fd is not negative. */
int control_order(const struct server *server, const struct order *order, int fd);

/* control_command runs a command line and writes the answer to out. control_command returns false
 * for "quit". */
bool control_command(struct control *control, char *line, FILE *out, int *seconds);

/* server_run serves clients until the daemon has ended. server_run returns the exit status. */
int server_run(int control, const struct terms *terms);

/* write_log writes a line to a log. */
void write_log(const char *dir, const char *who, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

const char *mps_pipes(void);
const char *mps_logs(void);

#endif

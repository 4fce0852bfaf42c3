// SPDX-License-Identifier: Apache-2.0
/*
 * The simulated nvidia-cuda-mps-control: the daemon, its server, and the
 * commands that the program reads from its standard input.
 */
#ifndef GPUSIM_MPS_PROGRAM_H
#define GPUSIM_MPS_PROGRAM_H

#include "mps.h"

#include <stdio.h>

#define MAX_SERVERS 8
#define MAX_CLIENTS 1024 /* connections; what GPUs can serve is less */
#define TEXT_SIZE 8192

/* What the daemon has a server do. */
enum order_kind { ORDER_CLIENT, ORDER_LIST, ORDER_PART, ORDER_LIMIT, ORDER_QUIT };

struct order {
	uint32_t kind;
	int32_t pid;     /* of a client, whose connection comes along */
	uint32_t device; /* by the daemon's CUDA_VISIBLE_DEVICES */
	int32_t seconds; /* that clients have to end, negative: for ever */
	uint64_t value;
};

/* What new clients are held to, by the daemon's devices. */
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
	int quit; /* the connection of who asked for it, -1: nobody did */
};

/* Runs the daemon until it is told to quit; ready is told once clients may come. */
int control_run(int ready);

/* The server of a user, started where there is none; NULL if that failed. */
struct server *control_server(struct control *control, uid_t uid);

/* Sends a server an order, with a connection if fd is not negative. */
int control_order(const struct server *server, const struct order *order, int fd);

/* Carries out a line; the answer goes to out. False: the line asks to quit. */
bool control_command(struct control *control, char *line, FILE *out, int *seconds);

/* Serves clients until the daemon has gone. The exit status. */
int server_run(int control, const struct terms *terms);

/* A line of a log. */
void write_log(const char *dir, const char *who, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

const char *mps_pipes(void);
const char *mps_logs(void);

#endif

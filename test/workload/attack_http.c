// SPDX-License-Identifier: Apache-2.0

// This file implements attacks on the agent's HTTP server.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "attack.h"

static struct sockaddr_in wl_address(const char *text)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	const char *port = strchr(text, ':');
	char host[40];

	if (!port || (size_t)(port - text) >= sizeof host) {
		fprintf(stderr, "attack: --address must be IPv4:PORT\n");
		exit(64);
	}
	memcpy(host, text, (size_t)(port - text));
	host[port - text] = 0;
	address.sin_port = htons((uint16_t)atoi(port + 1));
	if (inet_pton(AF_INET, host, &address.sin_addr) != 1) {
		fprintf(stderr, "attack: --address must be IPv4:PORT\n");
		exit(64);
	}
	return address;
}

// wl_dial returns a connection. On failure wl_dial waits and returns -1.
static int wl_dial(struct wl_attack *attack)
{
	struct sockaddr_in address = wl_address(attack->address);
	int small = 4096;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct pollfd wait = {.fd = fd, .events = POLLOUT};
	int error = 0;
	socklen_t length = sizeof error;

	if (fd < 0) {
		attack->refused++;
		wl_attack_rest(100);
		return -1;
	}
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	if ((connect(fd, (const struct sockaddr *)&address, sizeof address) && errno != EINPROGRESS) ||
	    poll(&wait, 1, 1000) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) || error) {
		attack->refused++;
		close(fd);
		wl_attack_rest(20);
		return -1;
	}
	attack->done++;
	return fd;
}

// wl_hold opens a connection, sends a text, and replaces the oldest held connection by the new
// connection.
static void wl_hold(struct wl_attack *attack, const char *say)
{
	static int *held;
	static uint64_t at;
	int fd;

	if (!held) {
		wl_attack_all_files();
		held = calloc(attack->connections, sizeof *held);
		if (!held)
			exit(1);
	}
	fd = wl_dial(attack);
	if (fd < 0)
		return;
	send(fd, say, strlen(say), MSG_NOSIGNAL | MSG_DONTWAIT);
	if (held[at])
		close(held[at]);
	held[at] = fd;
	at = (at + 1) % attack->connections;
	if (at == 0)
		wl_attack_rest(500);
}

static void wl_slow(struct wl_attack *attack)
{
	wl_hold(attack, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n");
}

static void wl_half(struct wl_attack *attack)
{
	wl_hold(attack, "GET /metr");
}

// wl_scrape requests all metrics over as many connections as possible, and reads no answer.
static void wl_scrape(struct wl_attack *attack)
{
	static const char *const paths[] = {"/metrics", "/readyz", "/healthz", "/nonsense"};
	char say[100];
	int fd = wl_dial(attack);

	if (fd < 0)
		return;
	snprintf(say, sizeof say, "GET %s HTTP/1.0\r\n\r\n", paths[wl_attack_random() % 4]);
	send(fd, say, strlen(say), MSG_NOSIGNAL | MSG_DONTWAIT);
	close(fd);
}

const struct wl_attack_way wl_http_ways[] = {
	{"scrape", "request the metrics repeatedly", wl_scrape},
	{"slow", "request the metrics over --connections connections and read nothing", wl_slow},
	{"half", "send half a request over each of --connections connections", wl_half},
	{NULL, NULL, NULL},
};

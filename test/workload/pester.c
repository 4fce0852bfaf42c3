// SPDX-License-Identifier: Apache-2.0

// pester attacks the agent and the usage page of pester's container for a given time. A hostile
// program in a container can make the same attacks. pester uses no GPU. Without an agent, pester
// prints an error and fails.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "json.h"
#include "options.h"

#include "../../interposer/src/pages/pages_gen.h"

struct wl_pester {
	const char *way;
	const char *dir;
	uint64_t connections;
	double duration;
	uint64_t made;
	uint64_t refused;
	uint64_t errors;  // the agent's answers that are errors
	uint64_t answers; // all other answers of the agent
};

static double wl_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void wl_rest(long ns)
{
	struct timespec nap = {.tv_nsec = ns};

	nanosleep(&nap, NULL);
}

// wl_connect returns a connection to the agent, or -1 if the agent's queue is full.
static int wl_connect(struct wl_pester *pester)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s/agent/agent.sock", pester->dir);
	if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0) {
		pester->made++;
		return fd;
	}
	if (fd >= 0 && errno != EAGAIN) {
		fprintf(stderr, "pester: cannot reach %s: %s\n", address.sun_path, strerror(errno));
		exit(1);
	}
	pester->refused++;
	if (fd >= 0)
		close(fd);
	wl_rest(100000);
	return -1;
}

static uint32_t wl_random(void)
{
	static uint64_t state = 0x9e3779b97f4a7c15;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32);
}

// wl_fuzz sends random bytes. Some of the bytes resemble a registration or a query.
static void wl_fuzz(struct wl_pester *pester)
{
	unsigned char said[256] = {'N', 'V', 'G', wl_random() % 2 ? 'R' : 'Q', 1, 0, 16, 0};
	int fd = wl_connect(pester);
	size_t length = wl_random() % sizeof said;

	if (fd < 0)
		return;
	for (size_t i = wl_random() % 16; i < sizeof said; i++)
		said[i] = (unsigned char)wl_random();
	for (int i = 0; i < 4; i++)
		send(fd, said, length, MSG_NOSIGNAL | MSG_DONTWAIT);
	close(fd);
}

// wl_garbage sends garbage like wl_fuzz once, and waits for the answer.
static void wl_garbage(struct wl_pester *pester)
{
	static const char error[] = {'N', 'V', 'G', 'A', 1, 0, 3, 0};
	struct pollfd wait = {.events = POLLIN};
	unsigned char said[256] = {'N', 'V', 'G', 'Q', 1, 0, 16, 0};
	char got[2048];

	wait.fd = wl_connect(pester);
	if (wait.fd < 0)
		return;
	for (size_t i = wl_random() % 8; i < sizeof said; i++)
		said[i] = (unsigned char)wl_random();
	send(wait.fd, said, 1 + wl_random() % (sizeof said - 1), MSG_NOSIGNAL | MSG_DONTWAIT);
	if (poll(&wait, 1, 1000) > 0) {
		ssize_t n = recv(wait.fd, got, sizeof got, MSG_DONTWAIT);

		if (n >= (ssize_t)sizeof error && memcmp(got, error, sizeof error) == 0)
			pester->errors++;
		else if (n > 0)
			pester->answers++;
	}
	close(wait.fd);
}

// wl_flood connects and disconnects, from processes that end immediately afterwards.
static void wl_flood(struct wl_pester *pester)
{
	pid_t child = fork();

	if (child == 0) {
		for (int i = 0; i < 100; i++) {
			int fd = wl_connect(pester);

			if (fd >= 0)
				close(fd);
		}
		_exit(0);
	}
	if (child < 0)
		return;
	waitpid(child, NULL, 0);
	pester->made += 100;
}

// wl_half_open holds connections without sending, and replaces the connections that the agent has
// closed.
static void wl_half_open(struct wl_pester *pester)
{
	static int *held;
	static uint64_t at;
	int fd;

	if (!held) {
		struct rlimit all;

		getrlimit(RLIMIT_NOFILE, &all);
		all.rlim_cur = all.rlim_max;
		setrlimit(RLIMIT_NOFILE, &all);
		held = calloc(pester->connections, sizeof *held);
		if (!held)
			exit(1);
	}
	fd = wl_connect(pester);
	if (fd < 0)
		return;
	if (held[at])
		close(held[at]);
	held[at] = fd;
	at = (at + 1) % pester->connections;
}

// wl_usage_page maps the container's usage page.
static struct vg_usage_page *wl_usage_page(const struct wl_pester *pester)
{
	static struct vg_usage_page *page;
	char path[200];

	if (!page) {
		int fd;

		snprintf(path, sizeof path, "%s/usage", pester->dir);
		fd = open(path, O_RDWR | O_CLOEXEC);
		page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (page == MAP_FAILED) {
			fprintf(stderr, "pester: cannot map %s: %s\n", path, strerror(errno));
			exit(1);
		}
		close(fd);
	}
	return page;
}

// wl_forge claims that no process of the container holds memory.
static void wl_forge(const struct wl_pester *pester)
{
	struct vg_usage_page *page = wl_usage_page(pester);

	for (unsigned i = 0; i < VG_MAX_SLOTS; i++)
		for (unsigned k = 0; k < VG_MAX_DEVICES; k++) {
			__atomic_store_n(&page->slots[i].devices[k].used, 0, __ATOMIC_SEQ_CST);
			__atomic_store_n(&page->slots[i].devices[k].pending, 0, __ATOMIC_SEQ_CST);
		}
	wl_rest(1000000);
}

// wl_forge_time removes half of the increase of a sum of GPU time. Concurrent additions stay.
static void wl_forge_time(uint64_t *sum, uint64_t *last)
{
	uint64_t now = __atomic_load_n(sum, __ATOMIC_SEQ_CST);
	uint64_t half = now > *last ? (now - *last) / 2 : 0;

	*last = __atomic_sub_fetch(sum, half, __ATOMIC_SEQ_CST);
}

// wl_forge_times halves the charged GPU time that the container claims.
static void wl_forge_times(const struct wl_pester *pester)
{
	static uint64_t last[VG_MAX_SLOTS][VG_MAX_DEVICES];
	struct vg_usage_page *page = wl_usage_page(pester);

	for (unsigned i = 0; i < VG_MAX_SLOTS; i++)
		for (unsigned k = 0; k < VG_MAX_DEVICES; k++)
			wl_forge_time(&page->slots[i].devices[k].gpu_time_ns, &last[i][k]);
	wl_rest(1000000);
}

// wl_forge_spent forges the charges that programs count for other containers. wl_forge_spent resets
// the sums to their first values, as if the container were charged nothing.
static void wl_forge_spent(const struct wl_pester *pester)
{
	static uint64_t first[VG_MAX_DEVICES];
	static bool begun;
	struct vg_usage_page *page = wl_usage_page(pester);

	for (unsigned k = 0; k < VG_MAX_DEVICES; k++) {
		uint64_t *spent = &page->header.devices[k].spent_ns;

		if (!begun)
			first[k] = __atomic_load_n(spent, __ATOMIC_SEQ_CST);
		__atomic_store_n(spent, first[k], __ATOMIC_SEQ_CST);
	}
	begun = true;
	wl_rest(1000000);
}

static void wl_pester_once(struct wl_pester *pester)
{
	if (strcmp(pester->way, "fuzz") == 0)
		wl_fuzz(pester);
	else if (strcmp(pester->way, "garbage") == 0)
		wl_garbage(pester);
	else if (strcmp(pester->way, "flood") == 0)
		wl_flood(pester);
	else if (strcmp(pester->way, "half-open") == 0)
		wl_half_open(pester);
	else if (strcmp(pester->way, "forge-time") == 0)
		wl_forge_times(pester);
	else if (strcmp(pester->way, "forge-spent") == 0)
		wl_forge_spent(pester);
	else
		wl_forge(pester);
}

static bool wl_is_way(const char *way)
{
	static const char *const ways[] = {"fuzz", "garbage", "flood", "half-open", "forge", "forge-time", "forge-spent"};

	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		if (strcmp(way, ways[i]) == 0)
			return true;
	return false;
}

int main(int argc, char **argv)
{
	struct wl_pester pester = {
		.way = "fuzz", .dir = "/run/nri-vgpu", .connections = 10000, .duration = 1,
	};
	const struct wl_option options[] = {
		{"way", WL_OPTION_TEXT, &pester.way, "fuzz, garbage, flood, half-open: the agent's socket; forge, forge-time, forge-spent: the usage page"},
		{"dir", WL_OPTION_TEXT, &pester.dir, "directory of the container's pages"},
		{"connections", WL_OPTION_COUNT, &pester.connections, "number of half-open connections"},
		{"duration", WL_OPTION_NUMBER, &pester.duration, "seconds"},
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	double end;

	wl_options_parse(argc, argv, "Attack the agent like a hostile program in a container.", options);
	if (!wl_is_way(pester.way) || pester.connections == 0) {
		fprintf(stderr, "pester: unknown way \"%s\"; it must be one of --help, with a connection at least\n", pester.way);
		return WL_EXIT_USAGE;
	}
	end = wl_seconds() + pester.duration;
	while (wl_seconds() < end)
		wl_pester_once(&pester);
	wl_json_open(NULL);
	wl_json_string("way", pester.way);
	wl_json_integer("connections_made", (int64_t)pester.made);
	wl_json_integer("connections_refused", (int64_t)pester.refused);
	wl_json_integer("errors", (int64_t)pester.errors);
	wl_json_integer("answers", (int64_t)pester.answers);
	wl_json_close();
	return 0;
}

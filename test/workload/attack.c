// SPDX-License-Identifier: Apache-2.0

// attack attacks the node with all means of a container without privileges. attack grows, locks and
// overwrites its usage page, exhausts the agent's HTTP server, renames mounted files, makes
// namespaces, and forks. attack uses no GPU. The program pester attacks the agent's socket.

#define _GNU_SOURCE
#include "attack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "json.h"
#include "options.h"

static const struct wl_attack_way *const wl_all_ways[] = {wl_page_ways, wl_http_ways,
							  wl_system_ways};

enum { wl_tables = sizeof wl_all_ways / sizeof *wl_all_ways };

void wl_count(struct wl_attack *attack, long returned)
{
	if (returned < 0)
		attack->refused++;
	else
		attack->done++;
}

void wl_attack_rest(long ms)
{
	struct timespec nap = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	nanosleep(&nap, NULL);
}

uint32_t wl_attack_random(void)
{
	static uint64_t state = 0x9e3779b97f4a7c15;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32);
}

void wl_attack_all_files(void)
{
	struct rlimit all;

	if (getrlimit(RLIMIT_NOFILE, &all))
		return;
	all.rlim_cur = all.rlim_max;
	setrlimit(RLIMIT_NOFILE, &all);
}

static const struct wl_attack_way *wl_find_way(const char *name)
{
	for (size_t i = 0; i < wl_tables; i++)
		for (const struct wl_attack_way *way = wl_all_ways[i]; way->name; way++)
			if (strcmp(way->name, name) == 0)
				return way;
	return NULL;
}

static void wl_list(void)
{
	for (size_t i = 0; i < wl_tables; i++)
		for (const struct wl_attack_way *way = wl_all_ways[i]; way->name; way++)
			printf("%-10s  %s\n", way->name, way->help);
}

static double wl_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void wl_report(const char *way, const struct wl_attack *attack)
{
	wl_json_open(NULL);
	wl_json_string("attack", way);
	wl_json_integer("done", (int64_t)attack->done);
	wl_json_integer("refused", (int64_t)attack->refused);
	wl_json_close();
}

int main(int argc, char **argv)
{
	struct wl_attack attack = {
		.dir = "/run/nri-vgpu", .address = "127.0.0.1:9394", .connections = 500, .locks = 20000,
	};
	const char *name = "grow";
	double duration = 1;
	bool list = false;
	const struct wl_option options[] = {
		{"way", WL_OPTION_TEXT, &name, "the attack; see --list"},
		{"list", WL_OPTION_FLAG, &list, "list the ways"},
		{"dir", WL_OPTION_TEXT, &attack.dir, "directory of the container's pages"},
		{"address", WL_OPTION_TEXT, &attack.address, "address of the agent's metrics, IPv4:PORT"},
		{"connections", WL_OPTION_COUNT, &attack.connections, "number of held connections"},
		{"locks", WL_OPTION_COUNT, &attack.locks, "number of locks"},
		{"duration", WL_OPTION_NUMBER, &duration, "seconds"},
		{NULL, WL_OPTION_FLAG, NULL, NULL},
	};
	const struct wl_attack_way *way;
	double end;

	wl_options_parse(argc, argv, "Attacks the node from a container.", options);
	if (list) {
		wl_list();
		return 0;
	}
	way = wl_find_way(name);
	if (!way || attack.connections == 0) {
		fprintf(stderr, "attack: unknown way \"%s\" or no connection; see --list and --help\n", name);
		return WL_EXIT_USAGE;
	}
	end = wl_seconds() + duration;
	while (wl_seconds() < end)
		way->once(&attack);
	wl_report(name, &attack);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0

// This header covers the ways of the program attack, by the attacked file.

#ifndef WORKLOAD_ATTACK_H
#define WORKLOAD_ATTACK_H

#include <stdbool.h>
#include <stdint.h>

struct wl_attack {
	const char *dir;     // directory of the container's pages
	const char *address; // the agent's metrics, IPv4:PORT
	uint64_t connections;
	uint64_t locks;
	uint64_t done;    // deeds that the kernel allowed
	uint64_t refused; // deeds that the kernel refused
};

struct wl_attack_way {
	const char *name;
	const char *help;
	void (*once)(struct wl_attack *attack);
};

extern const struct wl_attack_way wl_page_ways[], wl_http_ways[], wl_system_ways[];

// wl_count counts one deed, by the result of its system call.
void wl_count(struct wl_attack *attack, long returned);
void wl_attack_rest(long ms);
uint32_t wl_attack_random(void);
// wl_attack_all_files raises the process's limit on open files to the maximum.
void wl_attack_all_files(void);

#endif

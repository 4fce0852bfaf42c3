// SPDX-License-Identifier: Apache-2.0

#include "ways.h"

#include <stdio.h>
#include <string.h>

static const struct wl_way *const wl_families[] = {
	wl_linear_ways, wl_array_ways, wl_ordered_ways, wl_graph_ways,
	wl_context_ways,
};

#define WL_FAMILIES (sizeof wl_families / sizeof *wl_families)

const struct wl_way *wl_way_find(const char *name)
{
	for (size_t i = 0; i < WL_FAMILIES; i++)
		for (const struct wl_way *way = wl_families[i]; way->name; way++)
			if (strcmp(way->name, name) == 0)
				return way;
	return NULL;
}

const struct wl_way *wl_way_at(size_t number)
{
	for (size_t i = 0; i < WL_FAMILIES; i++)
		for (const struct wl_way *way = wl_families[i]; way->name; way++)
			if (number-- == 0)
				return way;
	return NULL;
}

void wl_way_list(void)
{
	const struct wl_way *way;

	for (size_t i = 0; (way = wl_way_at(i)); i++)
		printf("%-14s %s\n", way->name, way->help);
}

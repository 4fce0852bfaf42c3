// SPDX-License-Identifier: Apache-2.0
/* This file implements the profile's keys for calls by name: "cost = CALL TIME", "fail = CALL
 * RESULT …". */
#include "config.h"
#include "value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const known[] = { /* in strcmp's order */
#define NAME(name) #name,
#include "known_calls.h"
#undef NAME
};

static int compare(const void *name, const void *entry)
{
	return strcmp(name, *(const char *const *)entry);
}

/* next_word cuts the next word off a line, and returns NULL at the line's end. */
static char *next_word(char **line)
{
	char *word = *line + strspn(*line, " \t");
	size_t length = strcspn(word, " \t");

	if (length == 0)
		return NULL;
	*line = word + length;
	if (**line)
		*(*line)++ = '\0';
	return word;
}

/* take_name takes the call's name from a line. take_name returns NULL for a name that no library
 * has. */
static const char *take_name(struct config *config, char **line, char name[GS_CALL_SIZE])
{
	const char *word = next_word(line);

	if (word && strlen(word) < GS_CALL_SIZE &&
	    bsearch(word, known, sizeof(known) / sizeof(known[0]), sizeof(known[0]), compare))
		return memcpy(name, word, strlen(word) + 1);
	(void)snprintf(config->problem, sizeof(config->problem),
		       "neither libcuda nor libnvidia-ml has a call %s", word ? word : "without a name");
	return NULL;
}

static struct gs_cost *cost_of(struct gs_driver *driver, const char *name)
{
	for (uint32_t i = 0; i < driver->cost_count; i++)
		if (strcmp(driver->costs[i].call, name) == 0)
			return &driver->costs[i];
	return driver->cost_count < GS_MAX_COSTS ? &driver->costs[driver->cost_count++] : NULL;
}

bool config_add_cost(struct config *config, char *line)
{
	struct gs_cost cost = {0};
	struct gs_cost *place;
	const char *time;

	if (!take_name(config, &line, cost.call))
		return false;
	time = next_word(&line);
	if (!time || !value_time(time, &cost.ns) || next_word(&line))
		return false;
	place = cost_of(&config->machine.driver, cost.call);
	if (place)
		*place = cost;
	else
		(void)snprintf(config->problem, sizeof(config->problem), "more than %u calls with costs",
			       GS_MAX_COSTS);
	return place != NULL;
}

/* take_failure parses the failure's result and the numbers after "after" and "count". */
static bool take_failure(struct gs_failure *failure, char *line)
{
	const char *word = next_word(&line);
	uint32_t result;

	if (!word || !value_u32(word, &result) || result == 0 || result > INT32_MAX)
		return false;
	failure->result = (int32_t)result;
	while ((word = next_word(&line))) {
		uint32_t *to = strcmp(word, "after") == 0 ? &failure->after :
			       strcmp(word, "count") == 0 ? &failure->count : NULL;

		word = next_word(&line);
		if (!to || !word || !value_u32(word, to))
			return false;
	}
	return true;
}

bool config_add_failure(struct config *config, char *line)
{
	struct gs_driver *driver = &config->machine.driver;
	struct gs_failure failure = {0};

	if (!take_name(config, &line, failure.call) || !take_failure(&failure, line))
		return false;
	if (driver->failure_count == GS_MAX_FAILURES) {
		(void)snprintf(config->problem, sizeof(config->problem), "more than %u failures",
			       GS_MAX_FAILURES);
		return false;
	}
	driver->failures[driver->failure_count++] = failure;
	return true;
}

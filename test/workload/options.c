// SPDX-License-Identifier: Apache-2.0

#include "options.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char *const wl_placeholders[] = {
	[WL_OPTION_TEXT] = "TEXT",
	[WL_OPTION_BYTES] = "BYTES",
	[WL_OPTION_COUNT] = "N",
	[WL_OPTION_NUMBER] = "NUMBER",
};

static void wl_print_help(const char *program, const char *about,
			  const struct wl_option *options)
{
	printf("Usage: %s [OPTION]...\n%s\n\nOptions:\n", program, about);
	for (; options->name; options++) {
		char left[64];

		snprintf(left, sizeof left, "--%s %s", options->name,
			 options->kind == WL_OPTION_FLAG ?
				 "" : wl_placeholders[options->kind]);
		printf("  %-22s %s\n", left, options->help);
	}
	printf("  %-22s %s\n", "--help", "show this help");
}

static bool wl_unit(const char *suffix, uint64_t *unit)
{
	static const struct {
		const char *suffix;
		uint64_t unit;
	} units[] = {
		{"", 1}, {"B", 1},
		{"k", 1000}, {"M", 1000000}, {"G", 1000000000},
		{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30},
		{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	};

	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		if (strcmp(suffix, units[i].suffix) == 0) {
			*unit = units[i].unit;
			return true;
		}
	}
	return false;
}

static bool wl_integer(const char *text, bool with_unit, uint64_t *value)
{
	char *end;
	uint64_t unit = 1;

	errno = 0;
	*value = strtoull(text, &end, 10);
	if (end == text || *text == '-' || errno)
		return false;
	if (*end && !(with_unit && wl_unit(end, &unit)))
		return false;
	return !__builtin_mul_overflow(*value, unit, value);
}

static bool wl_number(const char *text, double *value)
{
	char *end;

	*value = strtod(text, &end);
	return end != text && !*end && isfinite(*value) && *value >= 0;
}

static bool wl_store(const struct wl_option *option, const char *text)
{
	switch (option->kind) {
	case WL_OPTION_TEXT:
		*(const char **)option->target = text;
		return true;
	case WL_OPTION_BYTES:
		return wl_integer(text, true, option->target);
	case WL_OPTION_COUNT:
		return wl_integer(text, false, option->target);
	case WL_OPTION_NUMBER:
		return wl_number(text, option->target);
	case WL_OPTION_FLAG:
		break;
	}
	return false;
}

static const struct wl_option *wl_find(const struct wl_option *options,
				       const char *name, size_t length)
{
	for (; options->name; options++)
		if (strlen(options->name) == length &&
		    strncmp(options->name, name, length) == 0)
			return options;
	return NULL;
}

__attribute__((noreturn)) static void wl_misuse(const char *program,
						const char *argument,
						const char *problem)
{
	fprintf(stderr, "%s: %s: %s (--help lists the options)\n", program,
		argument, problem);
	exit(WL_EXIT_USAGE);
}

static void wl_end(int signal)
{
	_exit(128 + signal);
}

// wl_hear_the_end sets a handler for SIGTERM. The first process of a container without a handler
// ignores SIGTERM, and its pod would take all of its grace period to end.
static void wl_hear_the_end(void)
{
	struct sigaction action;

	if (getpid() != 1 || sigaction(SIGTERM, NULL, &action) ||
	    action.sa_handler == SIG_IGN)
		return;
	action = (struct sigaction){.sa_handler = wl_end};
	sigaction(SIGTERM, &action, NULL);
}

void wl_options_parse(int argc, char **argv, const char *about,
		      const struct wl_option *options)
{
	wl_hear_the_end();
	for (int i = 1; i < argc; i++) {
		const char *argument = argv[i];
		const char *equals = strchr(argument, '=');
		const struct wl_option *option;
		const char *value;

		if (strcmp(argument, "--help") == 0 ||
		    strcmp(argument, "-h") == 0) {
			wl_print_help(argv[0], about, options);
			exit(0);
		}
		if (strncmp(argument, "--", 2) != 0)
			wl_misuse(argv[0], argument, "not an option");
		option = wl_find(options, argument + 2,
				 equals ? (size_t)(equals - argument) - 2
					: strlen(argument) - 2);
		if (!option)
			wl_misuse(argv[0], argument, "unknown option");
		if (option->kind == WL_OPTION_FLAG) {
			if (equals)
				wl_misuse(argv[0], argument, "takes no value");
			*(bool *)option->target = true;
			continue;
		}
		value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
		if (!value)
			wl_misuse(argv[0], argument, "needs a value");
		if (!wl_store(option, value))
			wl_misuse(argv[0], argument, "bad value");
	}
}

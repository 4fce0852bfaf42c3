// SPDX-License-Identifier: Apache-2.0

// This header declares command-line options by a table, from which parsing, checks and --help
// follow.

#ifndef WORKLOAD_OPTIONS_H
#define WORKLOAD_OPTIONS_H

enum wl_option_kind {
	WL_OPTION_TEXT,   // const char *
	WL_OPTION_BYTES,  // uint64_t; a number with an optional KiB, MiB, GiB, k, M, G
	WL_OPTION_COUNT,  // uint64_t
	WL_OPTION_NUMBER, // double, not negative
	WL_OPTION_FLAG,   // bool
};

struct wl_option {
	const char *name; // without the dashes
	enum wl_option_kind kind;
	void *target;
	const char *help;
};

// WL_EXIT_USAGE is the exit status of a program with wrong arguments.
#define WL_EXIT_USAGE 64

// wl_options_parse reads the arguments into the options' targets. After --help, wl_options_parse
// ends the program with 0. For an unknown option or a bad value, it prints one line on standard
// error and ends the program with WL_EXIT_USAGE. The list ends with a NULL name. After
// wl_options_parse, a container's first process ends on SIGTERM, unless the process ignores the
// signal.
void wl_options_parse(int argc, char **argv, const char *about,
		      const struct wl_option *options);

#endif

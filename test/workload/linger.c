// SPDX-License-Identifier: Apache-2.0

// linger does nothing until it is told to end: the first process of a container
// in which others are started.

#include <unistd.h>

#include "options.h"

int main(int argc, char **argv)
{
	static const struct wl_option options[] = {{0}};

	wl_options_parse(argc, argv, "Does nothing until it is told to end.",
			 options);
	for (;;)
		pause();
}

// SPDX-License-Identifier: Apache-2.0

// linger does nothing until a signal ends the program. linger is the first process of a container
// in which tests start other programs.

#include <unistd.h>

#include "options.h"

int main(int argc, char **argv)
{
	static const struct wl_option options[] = {{0}};

	wl_options_parse(argc, argv, "Does nothing until a signal ends the program.",
			 options);
	for (;;)
		pause();
}

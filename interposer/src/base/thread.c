// SPDX-License-Identifier: Apache-2.0

#include "thread.h"

int pthread_setcancelstate(int state, int *old) __attribute__((weak));

int vg_thread_keep(void)
{
	enum { disable = 1 };
	int before = disable;

	if (pthread_setcancelstate)
		pthread_setcancelstate(disable, &before);
	return before;
}

void vg_thread_let(int kept)
{
	if (pthread_setcancelstate)
		pthread_setcancelstate(kept, &kept);
}

// SPDX-License-Identifier: Apache-2.0

#ifndef VG_TEST_PROBE_H
#define VG_TEST_PROBE_H

struct probe_call {
	long integers[8];
	double floats[8];
};

#endif

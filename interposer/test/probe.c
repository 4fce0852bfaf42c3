// SPDX-License-Identifier: Apache-2.0

// This library stands in for the driver in stub_test.c. The library exports a few of the driver's
// names and reports its calls.

#include <string.h>

#include "probe.h"

#define PROBE_API __attribute__((visibility("default")))

static struct probe_call seen;

PROBE_API int cuProfilerStart(long a, long b, long c, long d, long e, long f, double x0, double x1,
			      double x2, double x3, double x4, double x5, double x6, double x7, long g,
			      long h);

int cuProfilerStart(long a, long b, long c, long d, long e, long f, double x0, double x1, double x2,
		    double x3, double x4, double x5, double x6, double x7, long g, long h)
{
	seen = (struct probe_call){{a, b, c, d, e, f, g, h}, {x0, x1, x2, x3, x4, x5, x6, x7}};
	return 42;
}

PROBE_API int cuProfilerStop(struct probe_call *call);

int cuProfilerStop(struct probe_call *call)
{
	memcpy(call, &seen, sizeof seen);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0

// DRIVER replaces a driver function by the test's function.

#ifndef VG_TEST_STAND_IN_H
#define VG_TEST_STAND_IN_H

#include "load/real.h"

#define DRIVER(name, function) vg_real_functions[VG_SYM_##name] = (vg_function)(void (*)(void))(function)

#endif

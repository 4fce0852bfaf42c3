// SPDX-License-Identifier: Apache-2.0

// DRIVER puts a test's function in place of one of the driver's.

#ifndef VG_TEST_STAND_IN_H
#define VG_TEST_STAND_IN_H

#include "real.h"

#define DRIVER(name, function) vg_real_functions[VG_SYM_##name] = (vg_function)(void (*)(void))(function)

#endif

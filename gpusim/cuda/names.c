// SPDX-License-Identifier: Apache-2.0
/* This file contains the table of all entry points. The functions' types do not matter in this
 * file. */
#include "names.h"

#define NAME(name, version) void name(void);
#include "branch_names.h"
#undef NAME

const struct driver_name driver_names[] = {
#define NAME(name, version) {#name, name, version},
#include "branch_names.h"
#undef NAME
};

const size_t driver_name_count = sizeof(driver_names) / sizeof(driver_names[0]);

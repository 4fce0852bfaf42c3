// SPDX-License-Identifier: Apache-2.0
/* This file contains the names of a library's calls, from the list in GS_NAMES. */
#include "calls.h"

const char *const gs_call_names[] = {
#define NAME(name, ...) #name,
#include GS_NAMES
};

const size_t gs_call_count = sizeof(gs_call_names) / sizeof(gs_call_names[0]);

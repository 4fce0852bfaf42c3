// SPDX-License-Identifier: Apache-2.0
/*
 * These functions parse text values of configurations, profiles and options. Each function returns
 * false if the text is not a value.
 */
#ifndef GPUSIM_VALUE_H
#define GPUSIM_VALUE_H

#include <stdbool.h>
#include <stdint.h>

/* value_number parses a number, and returns the text after the number. */
bool value_number(const char *text, uint64_t *value, const char **rest);

/* value_u32 parses a number that fits 32 bits, without text after the number. */
bool value_u32(const char *text, uint32_t *value);

/* value_size parses bytes, with an optional unit: 16GiB. */
bool value_size(const char *text, uint64_t *value);

/* value_time parses a time, with an optional unit: 14ms. */
bool value_time(const char *text, uint64_t *ns);

/* value_ppm parses "50ppm" or "-50ppm", up to a tenth. */
bool value_ppm(const char *text, int64_t *value);

/* value_percent parses "30%", up to 90, as parts of a million. */
bool value_percent(const char *text, uint32_t *ppm);

#endif

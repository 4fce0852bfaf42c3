// SPDX-License-Identifier: Apache-2.0
/* This file parses values of configurations, profiles and options, in text. */
#include "value.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

bool value_number(const char *text, uint64_t *value, const char **rest)
{
	char *end;

	errno = 0;
	if (!isdigit((unsigned char)*text))
		return false;
	*value = strtoull(text, &end, 0);
	*rest = end;
	return errno == 0;
}

/*
 * number_with_unit parses a number with an optional unit from the table. A bare number has the unit
 * 1.
 */
static bool number_with_unit(const char *text, uint64_t *value, const char *const *units,
		       const uint64_t *factors)
{
	const char *rest;

	if (!value_number(text, value, &rest))
		return false;
	if (*rest == '\0')
		return true;
	for (size_t i = 0; units[i]; i++)
		if (strcmp(rest, units[i]) == 0)
			return !__builtin_mul_overflow(*value, factors[i], value);
	return false;
}

bool value_size(const char *text, uint64_t *value)
{
	static const char *const units[] = {"KiB", "MiB", "GiB", "B", NULL};
	static const uint64_t factors[] = {1u << 10, 1u << 20, 1u << 30, 1};

	return number_with_unit(text, value, units, factors);
}

bool value_time(const char *text, uint64_t *value)
{
	static const char *const units[] = {"ns", "us", "ms", "s", NULL};
	static const uint64_t factors[] = {1, 1000, 1000000, 1000000000};

	return number_with_unit(text, value, units, factors);
}

bool value_ppm(const char *text, int64_t *value)
{
	static const char *const units[] = {"ppm", NULL};
	static const uint64_t factors[] = {1};
	bool negative = *text == '-';
	uint64_t ppm;

	if (!number_with_unit(text + negative, &ppm, units, factors) || ppm > 100000)
		return false;
	*value = negative ? -(int64_t)ppm : (int64_t)ppm;
	return true;
}

bool value_percent(const char *text, uint32_t *ppm)
{
	static const char *const units[] = {"%", NULL};
	static const uint64_t factors[] = {1};
	uint64_t percent;

	if (!number_with_unit(text, &percent, units, factors) || percent > 90)
		return false;
	*ppm = (uint32_t)percent * 10000;
	return true;
}

bool value_u32(const char *text, uint32_t *value)
{
	uint64_t wide;
	const char *rest;

	if (!value_number(text, &wide, &rest) || *rest || wide > UINT32_MAX)
		return false;
	*value = (uint32_t)wide;
	return true;
}

// SPDX-License-Identifier: Apache-2.0

#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static int wl_depth;
static bool wl_follows; // the next member needs a preceding comma

static void wl_quote(const char *text)
{
	putchar('"');
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < 0x20)
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

// wl_member begins a member. Elements of an array and the outermost object have no name (NULL).
static void wl_member(const char *name)
{
	if (wl_follows)
		putchar(',');
	wl_follows = true;
	if (!name)
		return;
	wl_quote(name);
	putchar(':');
}

static void wl_begin(const char *name, char bracket)
{
	wl_member(name);
	putchar(bracket);
	wl_follows = false;
	wl_depth++;
}

static void wl_end(char bracket)
{
	putchar(bracket);
	wl_follows = true;
	if (--wl_depth > 0)
		return;
	wl_follows = false;
	putchar('\n');
	fflush(stdout);
}

void wl_json_open(const char *name)
{
	wl_begin(name, '{');
}

void wl_json_close(void)
{
	wl_end('}');
}

void wl_json_array(const char *name)
{
	wl_begin(name, '[');
}

void wl_json_array_end(void)
{
	wl_end(']');
}

void wl_json_string(const char *name, const char *value)
{
	wl_member(name);
	wl_quote(value);
}

void wl_json_integer(const char *name, int64_t value)
{
	wl_member(name);
	printf("%" PRId64, value);
}

void wl_json_bytes(const char *name, uint64_t value)
{
	wl_member(name);
	printf("%" PRIu64, value);
}

void wl_json_number(const char *name, double value)
{
	wl_member(name);
	if (isfinite(value))
		printf("%.9g", value);
	else
		fputs("null", stdout);
}

void wl_json_bool(const char *name, bool value)
{
	wl_member(name);
	fputs(value ? "true" : "false", stdout);
}

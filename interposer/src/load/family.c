// SPDX-License-Identifier: Apache-2.0

#include "family.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "families.h"

// vg_patterns holds all patterns in one string. With an array of pointers, the start of every
// process in the container would need one relocation per pattern.
static const char vg_patterns[] =
#define VG_PATTERN(treatment, pattern) pattern "\0"
	VG_FAMILIES(VG_PATTERN)
#undef VG_PATTERN
	;

static const uint8_t vg_treatments[] = {
#define VG_TREATMENT(treatment, pattern) vg_family_##treatment,
	VG_FAMILIES(VG_TREATMENT)
#undef VG_TREATMENT
};

// vg_family_fits reports whether a name matches a pattern. For a `*`, vg_family_fits first tries
// the shortest run of characters after which the rest matches, then longer runs.
static bool vg_family_fits(const char *pattern, const char *name)
{
	const char *star = NULL;
	const char *resume = NULL;

	while (*name) {
		if (*pattern == '*') {
			star = pattern++;
			resume = name;
		} else if (*pattern == *name) {
			pattern++;
			name++;
		} else if (star) {
			pattern = star + 1;
			name = ++resume;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return *pattern == '\0';
}

enum vg_family vg_family_of(const char *name)
{
	const char *pattern = vg_patterns;

	for (size_t i = 0; i < sizeof vg_treatments; i++) {
		if (vg_family_fits(pattern, name))
			return (enum vg_family)vg_treatments[i];
		while (*pattern++)
			continue;
	}
	return vg_family_pass;
}

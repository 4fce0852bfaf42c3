// SPDX-License-Identifier: Apache-2.0

// symbols/families_test.txt holds the names and their entries in families.txt. The installer reads
// the same table, and its tests use the same file.

#include <string.h>

#include "check.h"
#include "load/family.h"

int main(void)
{
	static const char *const words[] = {
		[vg_family_pass] = "pass", [vg_family_refuse] = "refuse", [vg_family_capture] = "capture",
	};
	FILE *file = fopen("symbols/families_test.txt", "re");
	char line[256];
	char name[128];
	char want[16];
	int cases = 0;

	CHECK(file);
	while (fgets(line, sizeof line, file)) {
		if (line[0] == '#')
			continue;
		CHECK(sscanf(line, "%127s %15s", name, want) == 2);
		if (strcmp(words[vg_family_of(name)], want) != 0) {
			fprintf(stderr, "%s: %s, want %s\n", name, words[vg_family_of(name)], want);
			abort();
		}
		cases++;
	}
	fclose(file);
	CHECK(cases > 30);
	return 0;
}

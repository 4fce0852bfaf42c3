# SPDX-License-Identifier: Apache-2.0
# This script converts symbols/families.txt into a header. VG_FAMILIES(X) calls X(treatment,
# pattern) for each line, in the order of the lines.

/^#/ || NF == 0 { next }

NF != 2 || $1 !~ /^(pass|refuse|capture)$/ {
	printf "%s:%d: want pass, refuse or capture, and a pattern\n", FILENAME, FNR > "/dev/stderr"
	failed = 1
	exit 1
}

{ line[count++] = sprintf("\tX(%s, \"%s\")", $1, $2) }

END {
	if (failed)
		exit 1
	printf "#define VG_FAMILIES(X) \\\n"
	for (i = 0; i < count; i++)
		printf "%s%s\n", line[i], i < count - 1 ? " \\" : ""
}

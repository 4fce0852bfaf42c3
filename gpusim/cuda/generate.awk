# SPDX-License-Identifier: Apache-2.0
# This program reads the simulator's sources and the list of all names, and writes a
# stub for each name without a definition.

FILENAME ~ /\.c$/ {
	if (/^CU_API [A-Za-z0-9_ *]*[ *]cu[A-Za-z0-9_]+\(/) {
		name = $0
		sub(/\(.*/, "", name)
		sub(/.*[ *]/, "", name)
		defined[name] = 1
	} else if (/^CU_(PTSZ|PTDS)\(/) {
		suffix = $0 ~ /^CU_PTSZ/ ? "_ptsz" : "_ptds"
		name = $0
		sub(/^[^(]*\(/, "", name)
		sub(/,.*/, "", name)
		defined[name] = 1
		defined[name suffix] = 1
	}
	next
}

{
	listed[$1] = 1
	if (!($1 in defined))
		print "STUB(" $1 ")"
}

END {
	for (name in defined)
		if (!(name in listed)) {
			print "not a driver name: " name >"/dev/stderr"
			failed = 1
		}
	exit failed
}

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# This test covers the exports and imports of the libraries. Usage: symbols_test.sh
# DIRECTORY-OF-LIBRARIES DIRECTORY-OF-NAMES

set -u
libraries=${1:?usage: symbols_test.sh LIBRARIES NAMES}
names=${2:?usage: symbols_test.sh LIBRARIES NAMES}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
	echo "FAIL: $*"
	failures=$((failures + 1))
}

for library in libcuda libnvidia-ml; do
	file=$libraries/$library.so.1

	LC_ALL=C sort "$names/$library.names" >"$work/want"
	readelf -W --dyn-syms "$file" | awk '$7 ~ /^[0-9]+$/ && $5 != "LOCAL" { print $8 }' |
		LC_ALL=C sort >"$work/got"
	diff "$work/want" "$work/got" >"$work/diff" ||
		fail "$library exports other names (<: missing, >: too many): $(cat "$work/diff")"

	needed=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
	[ "$needed" = libc.so.6 ] || fail "$library needs: $needed"

	soname=$(readelf -d "$file" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
	[ "$soname" = "$library.so.1" ] || fail "$library is called $soname"

	readelf -d "$file" | grep -Eq '\((INIT|FINI|INIT_ARRAY|FINI_ARRAY|TEXTREL)\)' &&
		fail "$library has constructors, destructors or text relocations"

	# No version of a symbol may exceed 2.17, in the order of sort -V.
	newest=$(readelf -W --dyn-syms "$file" | grep -o '@GLIBC_[0-9.]*' |
		sed 's/@GLIBC_//' | sort -V | tail -n 1)
	[ "$(printf '%s\n2.17\n' "$newest" | sort -V | tail -n 1)" = 2.17 ] ||
		fail "$library needs GLIBC_$newest"

	# An internal name of the C library is only allowed if musl also has the name. If the
	# interposer used any other internal name, no process of a container with musl would start.
	foreign=$(readelf -W --dyn-syms "$file" | awk '$7 == "UND" && $5 == "GLOBAL" { sub("@.*", "", $8); print $8 }' |
		grep '^__' | grep -vx -e __errno_location -e __ctype_b_loc)
	[ -z "$foreign" ] || fail "$library needs names that musl does not have: $foreign"

	readelf -lW "$file" | grep -q 'GNU_STACK.*RWE' && fail "$library has an executable stack"
done

[ "$failures" -eq 0 ] || exit 1

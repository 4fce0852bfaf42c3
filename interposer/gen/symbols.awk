# SPDX-License-Identifier: Apache-2.0
# This script converts a table of symbols/ into a file for the build:
#   -v want=stubs   one macro call per name, for src/api/stubs.S
#   -v want=header  indexes, names and own functions, for C
#   -v want=map     the linker's version script
#   -v want=names   the exported names, for the tests
# -v extra="a b" adds names to the export list that are not in the table.

function fail(why) {
	printf "%s:%d: %s\n", FILENAME, FNR, why > "/dev/stderr"
	failed = 1
	exit 1
}

BEGIN { count = 0 }

/^#/ || NF == 0 { next }

$1 <= last { fail("not sorted: " $1 " after " last) }
$2 !~ /^(forward|own|data)$/ { fail("unknown treatment " $2) }
$2 == "data" && $3 !~ /^[0-9]+$/ { fail("data needs a size") }

# cuGetProcAddress decides by name: the interposer either replaces all versions of a name or
# forwards all.
{
	stem = $1
	sub(/_pt[ds][sz]$/, "", stem)
	sub(/_v[0-9]+$/, "", stem)
	if (stem in treated && treated[stem] != $2)
		fail("versions of " stem " are treated differently")
	treated[stem] = $2
}

{
	last = $1
	name[count] = $1
	kind[count] = $2
	size[count] = $3
	count++
}

function stubs(i) {
	for (i = 0; i < count; i++) {
		if (kind[i] == "forward")
			printf "VG_FORWARD %s, %d\n", name[i], i
		else if (kind[i] == "own")
			printf "VG_OWN %s\n", name[i]
		else
			printf "VG_DATA %s, %d\n", name[i], size[i]
	}
	printf "\t.set VG_SPARES, %d\n", count
}

# versions prints the lists in which vg_versions finds the symbols that are versions of a name, and
# the hash table of the lists. A list is the name's length, the symbols in order, and
# VG_SYMBOL_COUNT. The hash table uses the GNU hash of ELF files, with open addressing. An entry is
# the index at which a list begins, or 0, at which the empty list begins.
function hash_of(text, i, hash) {
	hash = 5381
	for (i = 1; i <= length(text); i++)
		hash = (hash * 33 + code[substr(text, i, 1)]) % 4294967296
	return hash
}

function put(text, i) {
	if (!(text in list))
		text_of[texts++] = text
	else if (last_of[text] == i)
		return
	list[text] = list[text] " " i ","
	last_of[text] = i
}

function collect(i, stem) {
	for (i = 0; i < count; i++) {
		stem = name[i]
		put(stem, i)
		sub(/_pt[ds][sz]$/, "", stem)
		put(stem, i)
		sub(/_v[0-9]+$/, "", stem)
		put(stem, i)
	}
}

function versions(i, at, begin, text) {
	for (i = 32; i < 127; i++)
		code[sprintf("%c", i)] = i
	collect()
	for (PLACES = 1; PLACES < 2 * count; PLACES *= 2)
		continue
	printf "\n// The length and the versions of each name and stem.\n"
	printf "#define VG_SYMBOL_VERSIONS \\\n\tVG_SYMBOL_COUNT,"
	begin = 1
	for (i = 0; i < texts; i++) {
		text = text_of[i]
		for (at = hash_of(text) % PLACES; at in place; at = (at + 1) % PLACES)
			continue
		place[at] = begin
		printf " \\\n\t%d,%s VG_SYMBOL_COUNT,", length(text), list[text]
		begin += gsub(/,/, ",", list[text]) + 2
	}
	if (begin > 65535)
		fail("the lists of versions do not fit 16 bits")
	printf "\n\n// The beginning of the list of each name and stem, by hash.\n"
	printf "#define VG_SYMBOL_PLACES"
	for (i = 0; i < PLACES; i++)
		printf "%s%d,", i % 32 ? " " : " \\\n\t", (i in place) ? place[i] : 0
	printf "\n"
}

# header prints the names as one string and a table of offsets. With an array of pointers, the start
# of every process in the container would need one relocation per name.
function header(i, offset) {
	printf "enum vg_symbol {\n"
	for (i = 0; i < count; i++)
		printf "\tVG_SYM_%s = %d,\n", name[i], i
	printf "\tVG_SYMBOL_COUNT = %d\n};\n\n", count
	printf "#define VG_SYMBOL_TEXT \\\n"
	for (i = 0; i < count; i++)
		printf "\t\"%s\\0\"%s\n", name[i], i < count - 1 ? " \\" : ""
	printf "\n#define VG_SYMBOL_OFFSETS \\\n"
	for (i = 0; i < count; i++) {
		printf "\t%d,%s\n", offset, i < count - 1 ? " \\" : ""
		offset += length(name[i]) + 1
	}
	printf "\n// VG_OWN_SYMBOLS(X) calls X(name) for each function that the interposer replaces.\n"
	printf "#define VG_OWN_SYMBOLS(X)"
	for (i = 0; i < count; i++)
		if (kind[i] == "own")
			printf " \\\n\tX(%s)", name[i]
	printf "\n"
	versions()
}

function map(i, n, extras) {
	printf "{\nglobal:\n"
	for (i = 0; i < count; i++)
		printf "\t%s;\n", name[i]
	n = split(extra, extras, " ")
	for (i = 1; i <= n; i++)
		printf "\t%s;\n", extras[i]
	printf "local:\n\t*;\n};\n"
}

function names(i, n, extras) {
	for (i = 0; i < count; i++)
		print name[i]
	n = split(extra, extras, " ")
	for (i = 1; i <= n; i++)
		print extras[i]
}

END {
	if (failed)
		exit 1
	if (want == "stubs")
		stubs()
	else if (want == "header")
		header()
	else if (want == "map")
		map()
	else
		names()
}

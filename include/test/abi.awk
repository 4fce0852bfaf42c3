# SPDX-License-Identifier: Apache-2.0
# This script converts cuda-abi-13.0.txt into static assertions about the declarations of
# cuda_abi.h. cuda-abi-13.0.txt is the output of a program compiled against a real cuda.h. The
# script skips names that cuda_abi.h does not declare: -v declared=FILE.

BEGIN {
	while ((getline line < declared) > 0)
		text = text line "\n"
	print "#include \"cuda_abi.h\""
}

function known(name) { return text ~ "(^|[^A-Za-z0-9_])" name "([^A-Za-z0-9_]|$)" }

$1 == "sizeof" && known($2) {
	printf "_Static_assert(sizeof(%s) == %d, \"%s\");\n", $2, $3, $2
	count++
}
$1 == "offset" {
	split($2, part, ".")
	if (known(part[1]) && known(part[2])) {
		printf "_Static_assert(offsetof(%s, %s) == %d, \"%s\");\n", part[1], part[2], $3, $2
		count++
	}
}
$1 == "value" && known($2) {
	printf "_Static_assert(%s == %d, \"%s\");\n", $2, $3, $2
	count++
}

END {
	if (count < 30) {
		print "abi.awk: only " count " assertions" > "/dev/stderr"
		exit 1
	}
	print "int main(void) { return 0; }"
}

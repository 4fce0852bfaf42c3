# SPDX-License-Identifier: Apache-2.0
# This program lists the names that a driver exports, with the CUDA version that added each name,
# as "name version" in strcmp's order:
#   awk -v cuda=12020 -f branch.awk libcuda-versions.txt libcuda-exports.txt [MORE…]
# A name is in the branch if its version is not above the branch's version. Names without a
# version are as old as CUDA 2. Names that a driver dropped before 580 are not known.

/^#/ || NF == 0 { next }

FILENAME ~ /versions/ {
	version[$1] = $2
	next
}

{
	brought = NF > 1 ? $2 : ($1 in version ? version[$1] : 2000)
	if (brought + 0 <= cuda + 0)
		print $1, brought | "LC_ALL=C sort"
}

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034 # variables are for those who source it
#
# A simulated machine with two GPUs, and containers on it; sourced by the tests,
# with the arguments LIBRARIES GPUSIM WORKLOADS MKPAGES [SANITIZER-LIBRARY].

set -u
libraries=$(realpath "${1:?}")
gpusim=$(realpath "${2:?}")
workloads=$(realpath "${3:?}")
mkpages=$(realpath "${4:?}")
sanitizer=${5:+$5:}
work=$(mktemp -d) || exit 1
trap 'kill $(jobs -p) 2>/dev/null; wait; "$gpusim/gpusim" destroy "$work/sim"; rm -rf "$work"' EXIT
# Programs end with their memory held, and what is known of it lies in a mapping
# in which the leak checker does not look.
export ASAN_OPTIONS=detect_leaks=0
set +m
failures=0
mib=1048576
gib=1073741824
context=$((512 * mib))

fail() {
	echo "FAIL: $*"
	failures=$((failures + 1))
}

mkdir "$work/sim"
"$gpusim/gpusim" create --gpus 2 --memory 16GiB "$work/sim" >/dev/null || exit 1

oracle() { "$gpusim/gpusim" oracle --json "$work/sim"; }

mapfile -t uuids < <(oracle | grep -o '"uuid":"GPU-[^"]*"' | head -n 2 | cut -d'"' -f4)

# pages NAME SIZE…: makes pages with these limits on the GPUs, in order.
pages() {
	local dir=$work/$1 devices=() i=0 size
	shift
	mkdir -p "$dir"
	for size in "$@"; do
		devices+=("${uuids[$i]}=$size")
		i=$((i + 1))
	done
	"$mkpages" "$dir" "${devices[@]}" || exit 1
}

# become NAME COMMAND…: turns this shell into a program as it would run in a
# container with these pages.
become() {
	local dir=$work/$1
	shift
	exec env NRI_VGPU_DIR="$dir" GPUSIM_STATE="$work/sim/state" LD_LIBRARY_PATH="$gpusim" \
		LD_PRELOAD="$sanitizer$libraries/libcuda.so.1:$libraries/libnvidia-ml.so.1" "$@"
}

# limited NAME COMMAND…: runs a program so.
limited() { (become "$@"); }

# field NAME: a number of the JSON line on standard input.
field() { grep -o "\"$1\": *[0-9]*" | head -n 1 | grep -o '[0-9]*$'; }

# peak PID: the most that an ended process has held on any GPU.
peak() {
	oracle | grep -o "{\"pid\":$1,[^]]*\]" | grep -o '"peak_bytes": *[0-9]*' |
		grep -o '[0-9]*$' | sort -n | tail -n 1
}

# held: bytes that are physically taken on the first GPU.
held() { oracle | field used_bytes; }

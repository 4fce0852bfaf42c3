#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# This script runs test programs, each on a separate machine state.
#   run.sh BUILD_DIR PROGRAM…
set -eu

out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# run PROGRAM: runs PROGRAM once, on a new machine, with the driver of PROGRAM.conf if that file
# exists
run() {
	dir=$work/$1
	profile=
	[ ! -f "$here/$1.conf" ] || profile=$here/$1.conf
	"$out/gpusim" create --gpus 2 --memory 4GiB --seed 1 ${profile:+--profile "$profile"} "$dir"
	status=0
	# branch_test opens the libraries of all branches. The loader's default space for static
	# thread-local storage is too small for these libraries.
	GLIBC_TUNABLES=glibc.rtld.optional_static_tls=8192 \
	GPUSIM_STATE=$dir/state GPUSIM_LIBCUDA=$out/libcuda.so.1 GPUSIM_LIBNVML=$out/libnvidia-ml.so.1 \
		GPUSIM_TOOL=$out/gpusim GPUSIM_MPS=$out/nvidia-cuda-mps-control GPUSIM_DATA=$here \
		timeout 120 "$out/test/$1" >"$work/log" 2>&1 || status=$?
	"$out/gpusim" destroy "$dir"
	return $status
}

for program in "$@"; do
	# Status 75 is OUT_OF_BOUNDS, see harness.h.
	for attempt in 1 2 3 4; do
		status=0
		run "$program" || status=$?
		[ "$status" -eq 75 ] || break
		echo "attempt $attempt of $program was out of bounds: $(cat "$work/log")"
		sleep 1
	done
	if [ "$status" -eq 0 ]; then
		echo "ok   $program"
	else
		echo "FAIL $program"
		cat "$work/log"
		failed=1
	fi
done
exit $failed

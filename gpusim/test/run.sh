#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# This script runs a test program on a separate machine state.
#   run.sh BUILD_DIR PROGRAM
set -eu

out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
program=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run runs the program once, on a new machine, with the driver of PROGRAM.conf if that file exists.
run() {
	profile=
	[ ! -f "$here/$program.conf" ] || profile=$here/$program.conf
	"$out/gpusim" create --gpus 2 --memory 4GiB --seed 1 ${profile:+--profile "$profile"} "$work/machine"
	status=0
	# branch_test opens the libraries of all branches. The loader's default space for static
	# thread-local storage is too small for these libraries.
	GLIBC_TUNABLES=glibc.rtld.optional_static_tls=8192 \
	GPUSIM_STATE=$work/machine/state GPUSIM_LIBCUDA=$out/libcuda.so.1 GPUSIM_LIBNVML=$out/libnvidia-ml.so.1 \
		GPUSIM_TOOL=$out/gpusim GPUSIM_MPS=$out/nvidia-cuda-mps-control GPUSIM_DATA=$here \
		timeout 120 "$out/test/$program" >"$work/log" 2>&1 || status=$?
	"$out/gpusim" destroy "$work/machine"
	return $status
}

# Status 75 is OUT_OF_BOUNDS, see harness.h.
for attempt in 1 2 3 4; do
	status=0
	run || status=$?
	[ "$status" -eq 75 ] || break
	echo "attempt $attempt of $program was out of bounds: $(cat "$work/log")"
	sleep 1
done
if [ "$status" -ne 0 ]; then
	echo "FAIL $program"
	cat "$work/log"
	exit 1
fi
echo "ok   $program"

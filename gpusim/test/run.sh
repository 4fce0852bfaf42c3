#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs test programs, each on a machine state of its own.
#   run.sh BUILD_DIR PROGRAM…
set -eu

out=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

for program in "$@"; do
	dir=$work/$program
	"$out/gpusim" create --gpus 2 --memory 4GiB --seed 1 "$dir"
	if GPUSIM_STATE=$dir/state GPUSIM_LIBCUDA=$out/libcuda.so.1 GPUSIM_LIBNVML=$out/libnvidia-ml.so.1 \
		GPUSIM_TOOL=$out/gpusim GPUSIM_MPS=$out/nvidia-cuda-mps-control GPUSIM_DATA=$here \
		timeout 120 "$out/test/$program" >"$work/log" 2>&1; then
		echo "ok   $program"
	else
		echo "FAIL $program"
		cat "$work/log"
		failed=1
	fi
	"$out/gpusim" destroy "$dir"
done
exit $failed

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Scenes in which programs were seen to hang, break or crawl, on a simulated driver with
# the rules and costs of a real one. Arguments: LIBRARIES GPUSIM WORKLOADS MKPAGES [SANITIZER-LIBRARY].
# With SCENES="name…" in the environment, only those tests run.

here=$(dirname "$(realpath "$0")")
# shellcheck source=interposer/test/container.sh
. "$here/container.sh"
profile=${PROFILE:-$here/../../gpusim/profiles/r580-h200.conf}

# machine [LINE…]: a new machine with the driver of the profile and these lines more.
machine() {
	"$gpusim/gpusim" destroy "$work/sim" >/dev/null
	rm -rf "$work/sim"
	{ cat "$profile"; printf '%s\n' "$@"; } >"$work/profile.conf"
	"$gpusim/gpusim" create --profile "$work/profile.conf" --gpus 2 --memory 16GiB "$work/sim" >/dev/null || exit 1
	mapfile -t uuids < <(oracle | grep -o '"uuid":"GPU-[^"]*"' | head -n 2 | cut -d'"' -f4)
}

# native COMMAND…: runs a program without the interposer.
native() { GPUSIM_STATE=$work/sim/state LD_LIBRARY_PATH=$gpusim "$@"; }

# limit PPM: pages that allow this part of both GPUs' time, and plenty of memory.
limit() {
	rm -rf "$work/pages"
	pages pages "$((12 * gib)):$context:$1" "$((12 * gib)):$context:$1"
}

# scene OPTION…: plays one under the limit; its JSON line is in $output.
scene() {
	output=$(limited pages timeout 60 "$workloads/scenes" --scene "$@" 2>"$work/errors")
}

# expect WHAT OPTION…: the scene goes well.
expect() {
	local what=$1
	shift
	scene "$@" || fail "$what: $output $(head -n 3 "$work/errors")"
}

# at_most WHAT FIELD MOST
at_most() {
	local got
	got=$(field "$2" <<<"$output")
	[ -n "$got" ] && [ "$got" -le "$3" ] || fail "$1: $2 is ${got:-unknown}, want at most $3: $output"
}

# No capture breaks that does not break by itself.
test_captures() {
	local ppm name
	machine
	for name in captures at-once; do
		output=$(native "$workloads/scenes" --scene "$name") || fail "$name, natively: $output"
	done
	for ppm in 500000 100000 1000000; do
		limit "$ppm"
		expect "captures at $ppm ppm" captures
		expect "captures of a busy program at $ppm ppm" captures --kernel-us 1000 --idle-us 0
		expect "captures at once at $ppm ppm" at-once
	done
}

# Somebody who waits for an event breaks no capture that forbids asking for it.
test_event_waits() {
	machine
	output=$(native "$workloads/scenes" --scene event-wait --captures 5) || fail "event waits, natively: $output"
	limit 900000
	expect "event waits" event-wait --captures 5
}

# held_to PPM LOW HIGH: the last scene's share of the GPU's time, in percent of its limit.
held_to() {
	local pid wall got
	pid=$(field pid <<<"$output")
	wall=$(field wall_us <<<"$output")
	got=$(oracle | grep -o "{\"pid\":$pid,[^]]*\]" | grep -o '"gpu_time_ns": *[0-9]*' | grep -o '[0-9]*$' |
		sort -n | tail -n 1)
	got=$((${got:-0} * 1000 / wall * 100 / $1))
	[ "$got" -ge "$2" ] && [ "$got" -le "$3" ] || fail "$4: $got % of the limit, want $2 to $3: $output"
}

# Where events cannot be recorded or read, a program goes on at its share, without waits.
test_blind() {
	local failure
	for failure in "cuEventRecord 999" "cuEventCreate 2" "cuEventQuery 999" "cuEventElapsedTime 400" \
		"cuEventRecord 400 after 10"; do
		machine "fail = $failure"
		limit 500000
		expect "launches with $failure" launches --launches 100
		at_most "launches with $failure" longest_us 110000
		at_most "launches with $failure" wall_us 800000
		expect "kernels of 2 ms with $failure" launches --launches 400 --kernel-us 2000 --idle-us 0
		held_to 500000 70 104 "kernels of 2 ms with $failure"
		expect "a row with $failure" row --launches 3000 --kernel-us 500
		held_to 500000 70 104 "a row with $failure"
	done
}

for name in ${SCENES:-captures event_waits blind}; do
	"test_$name"
done
[ "$failures" -eq 0 ] || exit 1
echo "scenes: ok"

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Scenes in which programs were seen to hang, break or crawl, on a simulated driver with
# the rules and costs of a real one. Arguments: LIBRARIES GPUSIM WORKLOADS MKPAGES [SANITIZER-LIBRARY].
# With SCENES="name…" in the environment, only those tests run.

# shellcheck disable=SC2119 # machine takes no arguments
here=$(dirname "$(realpath "$0")")
# shellcheck source-path=SCRIPTDIR source=container.sh
. "$here/container.sh"
profile=${PROFILE:-$here/../../gpusim/profiles/r580-h200.conf}

# driver [LINE…]: a new machine with the driver of the profile and these lines more.
driver() {
	{ cat "$profile"; printf '%s\n' "$@"; } >"$work/profile.conf"
	export GPUSIM_PROFILE=$work/profile.conf
	machine 2>/dev/null
}

# failing "CALL RESULT [after N]"…: a new machine whose driver returns these results, as a
# program without the interposer sees.
failing() {
	local failure call result
	driver "${@/#/fail = }"
	for failure in "$@"; do
		read -r call result _ <<<"$failure"
		output=$(native "$workloads/scenes" --scene call --call "$call" --launches 20) &&
			fail "$call goes well where it should return $result: $output"
		[ "$(field error_code <<<"$output")" = "$result" ] ||
			fail "$call does not return $result, natively: $output"
	done
}

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
	if [ -z "$got" ] || [ "$got" -gt "$3" ]; then
		fail "$1: $2 is ${got:-unknown}, want at most $3: $output"
	fi
}

# No capture breaks that does not break by itself.
test_captures() {
	local ppm name mode
	driver
	for mode in global thread-local relaxed; do
		for name in captures at-once; do
			output=$(native "$workloads/scenes" --scene "$name" --mode "$mode") ||
				fail "$mode $name, natively: $output"
		done
		for ppm in 500000 100000 1000000; do
			limit "$ppm"
			expect "$mode captures at $ppm ppm" captures --mode "$mode"
			expect "$mode captures of a busy program at $ppm ppm" captures --mode "$mode" \
				--kernel-us 1000 --idle-us 0
			expect "$mode captures at once at $ppm ppm" at-once --mode "$mode"
		done
	done
}

# Somebody who waits for an event breaks no capture that forbids asking for it.
test_event_waits() {
	driver
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
	got=$((${got:-0} * 100000 / (wall * $1)))
	if [ "$got" -lt "$2" ] || [ "$got" -gt "$3" ]; then
		fail "$4: $got % of the limit, want $2 to $3: $output"
	fi
}

# Where events cannot be recorded or read, a program goes on at its share, without waits.
test_blind() {
	local failure
	for failure in "cuEventRecord 999" "cuEventCreate 2" "cuEventQuery 999" "cuEventElapsedTime 400" \
		"cuEventRecord 400 after 10"; do
		failing "$failure"
		limit 500000
		expect "launches with $failure" launches --launches 100
		at_most "launches with $failure" longest_us 110000
		at_most "launches with $failure" wall_us 800000
		expect "kernels of 2 ms with $failure" launches --launches 400 --kernel-us 2000 --idle-us 0
		held_to 500000 70 104 "kernels of 2 ms with $failure"
		expect "a row with $failure" row --launches 1500 --kernel-us 500
		held_to 500000 70 104 "a row with $failure"
	done
}

# Nor where the driver does not even say whether a stream has work, or where another context
# is current than the one whose default stream has.
test_unsaid() {
	local failure
	failing "cuEventRecord 999" "cuStreamQuery 999"
	limit 500000
	expect "kernels of 2 ms that nobody sees end" launches --launches 400 --kernel-us 2000 --idle-us 0
	held_to 500000 50 104 "kernels of 2 ms that nobody sees end"
	expect "a row that nobody sees end" paced --launches 40 --kernel-us 20000 --idle-us 5000
	held_to 500000 0 104 "a row that nobody sees end"
	for failure in "cuEventRecord 999" "cuEventQuery 999"; do
		failing "$failure"
		limit 500000
		expect "two contexts with $failure" contexts --launches 300 --kernel-us 4000
		held_to 500000 50 104 "two contexts with $failure"
	done
}

# Beside a capture, work is charged whatever the driver answers of its stream.
test_beside() {
	local failure
	for failure in "" "cuStreamIsCapturing 999" "cuStreamGetCtx 999" "cuStreamGetDevice 999"; do
		failing ${failure:+"$failure"}
		limit 500000
		expect "beside a capture, $failure" beside --launches 400 --kernel-us 2000
		held_to 500000 50 104 "beside a capture, $failure"
		expect "kernels of 2 ms, $failure" launches --launches 400 --kernel-us 2000 --idle-us 0
		held_to 500000 70 104 "kernels of 2 ms, $failure"
	done
}

# Threads together get the share that one gets, however many have a stream together.
test_crowd() {
	local threads kernel
	driver
	limit 500000
	while read -r threads kernel; do
		expect "a crowd of $threads" crowd --threads "$threads" --hold-ms 2000 --kernel-us "$kernel"
		held_to 500000 50 104 "a crowd of $threads with kernels of $kernel µs"
	done <<-END
		8 1000
		64 200
		300 200
	END
}

# Work in a stream of another context than the current one is measured as any.
test_green() {
	driver
	limit 500000
	expect "a green context" green --launches 400 --kernel-us 2000 --idle-us 0
	at_most "a green context" longest_us 110000
	held_to 500000 80 104 "a green context"
}

# Where a queue is full, only those wait who have to.
test_full() {
	driver
	limit 900000
	expect "a full queue" full
	at_most "a full queue" longest_us 50000
}

# median VALUE…
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }

# shortest VALUE…
shortest() { printf '%s\n' "$@" | sort -n | head -n 1; }

# close_to A B: A is at most 5 % more than B.
close_to() { [ $(($1 * 100)) -le $(($2 * 105)) ]; }

# pace PPM SCENE OPTION…: the scene takes as long as natively, within 5 %: by the medians of runs
# in turn, or by the shortest ones, as a busy machine lengthens both at random.
pace() {
	local ppm=$1 attempt own=() real=()
	shift
	limit "$ppm"
	for attempt in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
		output=$(native "$workloads/scenes" --scene "$@") || fail "$1, natively: $output"
		real+=("$(field wall_us <<<"$output")")
		expect "$1 at $ppm ppm" "$@"
		own+=("$(field wall_us <<<"$output")")
		[ "$attempt" -ge 3 ] || continue
		! close_to "$(median "${own[@]}")" "$(median "${real[@]}")" || return 0
		[ "$attempt" -ge 5 ] || continue
		! close_to "$(shortest "${own[@]}")" "$(shortest "${real[@]}")" || return 0
	done
	fail "$* at $ppm ppm takes ${own[*]} µs, natively ${real[*]}"
}

# Scenes that need less than the limit take no longer than natively.
test_pace() {
	local ppm
	driver
	for ppm in 1000000 600000; do
		pace "$ppm" captures
		pace "$ppm" at-once --hold-ms 10
		pace "$ppm" launches
	done
	pace 1000000 row --launches 1000
	pace 1000000 persistent
	pace 1000000 full
	pace 1000000 lazy
	pace 1000000 two-gpus
	pace 1000000 allocation
	pace 1000000 constructor --module "$workloads/scenes_constructor.so"
}

for name in ${SCENES:-captures event_waits blind unsaid beside crowd green full pace}; do
	"test_$name"
done
[ "$failures" -eq 0 ] || exit 1
echo "scenes: ok"

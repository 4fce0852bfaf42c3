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

# at_most WHAT FIELD MOST: of times. Instrumented, nothing is as fast as natively.
at_most() {
	local got
	[ -z "$sanitizer" ] || return 0
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
# Instrumented, it may leave any of it.
held_to() {
	local pid wall got low=$2
	[ -z "$sanitizer" ] || low=0
	pid=$(field pid <<<"$output")
	wall=$(field wall_us <<<"$output")
	got=$(oracle | grep -o "{\"pid\":$pid,[^]]*\]" | grep -o '"gpu_time_ns": *[0-9]*' | grep -o '[0-9]*$' |
		sort -n | tail -n 1)
	got=$((${got:-0} * 100000 / (wall * $1)))
	if [ "$got" -lt "$low" ] || [ "$got" -gt "$3" ]; then
		fail "$4: $got % of the limit, want $low to $3: $output"
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
		[ -z "$failure" ] || ! lacks "failures of ${failure%% *}" "$workloads/scenes" \
			--scene call --call "${failure%% *}" --launches 1 || continue
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
	rm -rf "$work/pages"
	pages pages "$((12 * gib)):$context:500000" # of one GPU, where there are permits
	expect "a crowd on one GPU" crowd --threads 64 --hold-ms 2000 --kernel-us 200
	held_to 500000 50 104 "a crowd on one GPU"
}

# Work in a stream of another context than the current one is measured as any.
test_green() {
	driver
	! lacks "green contexts" "$workloads/scenes" --scene green --launches 1 || return 0
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

# slower PPM RUNS SCENE OPTION…: how long the scene takes under the limit, in thousandths of how
# long it takes natively: the median of so many pairs of runs, of which either is first in turn.
slower() {
	local ppm=$1 runs=$2 pair real own order
	ratios=()
	shift 2
	limit "$ppm"
	for ((pair = 0; pair < runs; pair++)); do
		for order in $((pair % 2)) $((1 - pair % 2)); do
			if [ "$order" = 0 ]; then
				output=$(native timeout 60 "$workloads/scenes" --scene "$@") || fail "$1, natively: $output"
				real=$(field wall_us <<<"$output")
			else
				expect "$1 at $ppm ppm" "$@"
				own=$(field wall_us <<<"$output")
			fi
		done
		ratios+=($((own * 1000 / real)))
	done
	slower=$(median "${ratios[@]}")
}

# pace PPM SCENE OPTION…: the scene takes as long as natively, within 5 %. Five pairs of runs
# tell; where they do not, because the machine was busy, nine new ones do.
pace() {
	local ppm=$1 first
	shift
	slower "$ppm" 5 "$@"
	[ "$slower" -gt 1050 ] || return 0
	first=${ratios[*]}
	slower "$ppm" 9 "$@"
	[ "$slower" -le 1050 ] ||
		fail "$* at $ppm ppm takes ${ratios[*]} thousandths of its time natively, and before that $first"
}

# finish PPM SCENE OPTION…: the scene goes well, natively and under the limit.
finish() {
	local ppm=$1
	shift
	output=$(native timeout 60 "$workloads/scenes" --scene "$@") || fail "$1, natively: $output"
	limit "$ppm"
	expect "$1 at $ppm ppm" "$@"
}

# quick COMMAND: has it play, PPM SCENE OPTION…, all scenes that need less than the limit.
quick() {
	local ppm
	driver
	for ppm in 1000000 600000; do
		"$1" "$ppm" captures
		"$1" "$ppm" at-once --hold-ms 10
		"$1" "$ppm" launches
		"$1" "$ppm" paced
		"$1" "$ppm" allocation
		"$1" "$ppm" two-gpus
		"$1" "$ppm" lazy
		"$1" "$ppm" constructor --module "$workloads/scenes_constructor.so"
	done
	"$1" 1000000 row --launches 1000
	"$1" 1000000 persistent
	"$1" 1000000 full
}

# Scenes that need less than the limit take no longer than natively.
test_pace() { quick pace; }

# …and come to the same end, where no time can be compared.
test_finishes() {
	quick finish
	finish 600000 row --launches 1000
	finish 600000 persistent
	finish 600000 full
}

# The scene of two GPUs is one: code waits for the first GPU, natively and under a limit, while
# work goes on on the second.
test_two_gpus() {
	driver
	output=$(native "$workloads/scenes" --scene two-gpus) || fail "two GPUs, natively: $output"
	waits "natively"
	limit 600000
	expect "two GPUs" two-gpus
	waits "at 600000 ppm"
	at_most "two GPUs" longest_us 110000
}

# waits WHERE: in the last scene code was loaded for most of the time of the long kernel.
waits() {
	local took
	took=$(field loading_us <<<"$output")
	[ "${took:-0}" -ge 300000 ] || fail "two GPUs $1: code waited ${took:-0} µs for a kernel of 500 ms: $output"
}

for name in ${SCENES:-captures event_waits blind unsaid beside crowd green full two_gpus pace}; do
	"test_$name"
done
[ "$failures" -eq 0 ] || exit 1
echo "scenes: ok"

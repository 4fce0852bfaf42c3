#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# This test runs scenes in which programs may hang, fail or slow down. The simulated driver has the
# rules and costs of a real driver. Usage: scenes_test.sh LIBRARIES GPUSIM WORKLOADS MKPAGES
# [SANITIZER-LIBRARY]. With SCENES="name…" in the environment, only the named tests run.

# shellcheck disable=SC2119 # machine takes no arguments
here=$(dirname "$(realpath "$0")")
# shellcheck source-path=SCRIPTDIR source=container.sh
. "$here/container.sh"
profile=${PROFILE:-$here/../../gpusim/profiles/r580-h200.conf}

# driver [LINE…] makes a new machine with the profile's driver and these additional lines.
driver() {
	{ cat "$profile"; printf '%s\n' "$@"; } >"$work/profile.conf"
	export GPUSIM_PROFILE=$work/profile.conf
	machine 2>/dev/null
}

# failing "CALL RESULT [after N]"… makes a new machine whose driver returns these results. failing
# checks the results in a program without the interposer.
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

# limit PPM makes pages with this part of both GPUs' time, and plenty of memory.
limit() {
	rm -rf "$work/pages"
	pages pages "$((12 * gib)):$context:$1" "$((12 * gib)):$context:$1"
}

# scene OPTION… runs a scene under the limit. $output receives the scene's JSON line.
scene() {
	output=$(limited pages timeout 60 "$workloads/scenes" --scene "$@" 2>"$work/errors")
}

# expect WHAT OPTION… runs a scene, and checks that the scene succeeds.
expect() {
	local what=$1
	shift
	scene "$@" || fail "$what: $output $(head -n 3 "$work/errors")"
}

# at_most WHAT FIELD MOST checks a time. With instrumentation, at_most only runs the scene.
at_most() {
	local got
	[ -z "$sanitizer" ] || return 0
	got=$(field "$2" <<<"$output")
	if [ -z "$got" ] || [ "$got" -gt "$3" ]; then
		fail "$1: $2 is ${got:-unknown}, want at most $3: $output"
	fi
}

# The interposer invalidates no capture that stays valid natively.
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

# A wait for an event invalidates no capture that forbids queries of the event.
test_event_waits() {
	driver
	output=$(native "$workloads/scenes" --scene event-wait --captures 5) || fail "event waits, natively: $output"
	limit 900000
	expect "event waits" event-wait --captures 5
}

# held_to PPM LOW HIGH checks the last scene's share of the GPU's time, in percent of the limit PPM.
# With instrumentation, the share has no lower bound.
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

# If events cannot be recorded or read, a program keeps its share, without waits.
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

# A program also keeps its share if the driver does not report whether a stream has work. The same
# holds if the working default stream belongs to another context.
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

# Beside a capture, work is charged, whatever the driver reports about its stream.
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

# All threads together get the share of one thread, however many threads share a stream.
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
	pages pages "$((12 * gib)):$context:500000" # on one GPU, so that the fast path applies
	expect "a crowd on one GPU" crowd --threads 64 --hold-ms 2000 --kernel-us 200
	held_to 500000 50 104 "a crowd on one GPU"
}

# Work in a stream outside the current context is measured as usual.
test_green() {
	driver
	! lacks "green contexts" "$workloads/scenes" --scene green --launches 1 || return 0
	limit 500000
	expect "a green context" green --launches 400 --kernel-us 2000 --idle-us 0
	at_most "a green context" longest_us 110000
	held_to 500000 80 104 "a green context"
}

# If a queue is full, only the threads that need the queue wait.
test_full() {
	driver
	limit 900000
	expect "a full queue" full
	at_most "a full queue" longest_us 50000
}

# The interposer measures kernels of unknown length one by one. A program may launch many of them behind
# a kernel that waits for the last one.
test_unlike() {
	driver
	limit 900000
	expect "unlike kernels behind a long kernel" unlike --kernel-us 100
	at_most "unlike kernels behind a long kernel" longest_us 250000
}

# median VALUE… prints the median.
median() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }

# slower PPM RUNS SCENE OPTION… measures the scene's time under the limit, in thousandths of its
# native time. The result is the median of RUNS pairs of runs, which alternate in order.
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

# pace PPM SCENE OPTION… checks that the scene takes at most 5 % longer than natively, with five
# pairs of runs. If the runs fail because the machine was busy, slower makes nine new pairs.
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

# finish PPM SCENE OPTION… checks that the scene succeeds, natively and under the limit.
finish() {
	local ppm=$1
	shift
	output=$(native timeout 60 "$workloads/scenes" --scene "$@") || fail "$1, natively: $output"
	limit "$ppm"
	expect "$1 at $ppm ppm" "$@"
}

# quick COMMAND PPM calls COMMAND PPM SCENE OPTION… for all scenes that need less than this limit.
quick() {
	driver
	"$1" "$2" captures
	"$1" "$2" at-once --hold-ms 10
	"$1" "$2" launches
	"$1" "$2" paced
	"$1" "$2" allocation
	"$1" "$2" two-gpus
	"$1" "$2" lazy
	"$1" "$2" constructor --module "$workloads/scenes_constructor.so"
	[ "$2" = 1000000 ] || return 0
	"$1" "$2" row --launches 1000
	"$1" "$2" persistent
	"$1" "$2" full
}

# Scenes that need less than the limit take no longer than natively.
test_pace() { quick pace 1000000; }
test_pace_limited() { quick pace 600000; }

# Scenes succeed in instrumented runs, too, whose times cannot be compared.
test_finishes() {
	quick finish 1000000
	quick finish 600000
	finish 600000 row --launches 1000
	finish 600000 persistent
	finish 600000 full
}

# In the scene of two GPUs, a load of code waits for the first GPU while work continues on the
# second GPU. The test runs natively and under a limit.
test_two_gpus() {
	driver
	output=$(native "$workloads/scenes" --scene two-gpus) || fail "two GPUs, natively: $output"
	waits "natively"
	limit 600000
	expect "two GPUs" two-gpus
	waits "at 600000 ppm"
	at_most "two GPUs" longest_us 110000
}

# waits WHERE checks that the last scene loaded code for most of the long kernel's time.
waits() {
	local took
	took=$(field loading_us <<<"$output")
	[ "${took:-0}" -ge 300000 ] || fail "two GPUs $1: code waited ${took:-0} µs for a kernel of 500 ms: $output"
}

for name in ${SCENES:-captures event_waits blind unsaid beside crowd green full unlike two_gpus pace pace_limited}; do
	"test_$name"
done
[ "$failures" -eq 0 ] || exit 1
echo "scenes: ok"

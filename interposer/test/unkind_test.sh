#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# This test covers programs on a driver that waits for the GPU, opens libraries and keeps memory,
# and agents that do not answer. $GPUSIM_PROFILE selects the driver. Usage: unkind_test.sh LIBRARIES
# GPUSIM WORKLOADS MKPAGES [SANITIZER-LIBRARY]
# shellcheck disable=SC2119 # machine takes no arguments

profiles=$(realpath "$(dirname "$0")/../../gpusim/profiles")
own=$(mktemp -d) || exit 1
tests=$(dirname "$(realpath "${4:?}")")
cat >"$own/unkind.conf" <<EOF
chunk = 2MiB
retain = 4MiB
lazy_loading = no
lazy_heap = yes
load_waits = yes
free_waits = yes
imports_keep = yes
nvml = not-available
EOF
given=${GPUSIM_PROFILE:+yes}
grep -v '^chunk\|^retain' "$own/unkind.conf" >"$own/fine.conf" # without chunks
export GPUSIM_PROFILE=${GPUSIM_PROFILE:-$own/unkind.conf}
base=$GPUSIM_PROFILE
{ cat "$base" && echo "constructor = $tests/constructor.so"; } >"$own/constructor.conf"
# shellcheck source-path=SCRIPTDIR source=container.sh
. "$(dirname "$0")/container.sh"
# unknown_context is the charge for a context of unmeasured size.
unknown_context=$(sed -n 's/^#define VG_UNKNOWN_CONTEXT_BYTES \([0-9]*\)u$/\1/p' \
	"$(dirname "$0")/../src/pages/pages_gen.h")
# The driver reports no memory to containers, but the agent still measures the memory.
agent=-honest
export GPUSIM_TOOL=$gpusim/gpusim

program=unkind # the program that try runs: unkind or sharing

# try NAME SIZE ARGUMENTS… runs a test in a container with a limit.
try() {
	local name=$1 limit=$2 output
	shift 2
	pages "$name" "$limit" "$limit"
	output=$(become_limited "$name" "$tests/$program" "$@" 2>&1) || fail "$*: $output"
}

become_limited() { (become "$1" timeout 20 "${@:2}"); }

# Loads for one GPU do not wait for loads for another GPU. The first allocation, and a library that
# the driver opens, do not wait for the GPU.
test_waits() {
	local test output
	for test in "$@"; do
		output=$(native timeout 20 "$tests/unkind" "$test" 2>&1) || fail "natively, $test: $output"
		try "$test" $((4 * gib)) "$test"
	done
}

# Memory held by a file descriptor or an import does not exceed the limit.
test_exports() {
	local test output
	for test in exports imports; do
		pages "$test" $((2 * gib))
		output=$(become_limited "$test" "$tests/sharing" "$test" 2>/dev/null) || fail "$test: $output"
		[ "$(peak "$(echo "$output" | field pid)")" -le $((2 * gib)) ] ||
			fail "$test: held $(peak "$(echo "$output" | field pid)") of $((2 * gib))"
		[ "$(echo "$output" | field held)" -ge 1 ] || fail "$test: $output"
	done
	program=sharing try given-back $((2 * gib)) given-back
}

# A process with exports may begin a new context, and does not exceed the limit.
test_contexts_again() {
	program=sharing try contexts-again $((context * 3 / 2)) contexts-again
	program=sharing below exports-kept $((2 * gib))
}

# beside_exports WAY starts a process without a context whose exports are gone, or kept.
# beside_exports sets granted to the bytes that another process is granted.
beside_exports() {
	local output limit=$((4 * gib))
	machine 2>/dev/null
	agent=-honest
	pages "left-$1" "$limit"
	rm -f "$work/left"
	limited "left-$1" "$tests/sharing" "exports-left-$1" >"$work/left" 2>&1 &
	while kill -0 $! 2>/dev/null && [ ! -s "$work/left" ]; do sleep 0.02; done
	[ "$1" = gone ] || [ "$(held)" -ge "$gib" ] || fail "exports that are $1: $(held) bytes are held"
	output=$(limited "left-$1" "$workloads/fill" 2>/dev/null)
	granted=$(echo "$output" | field granted_bytes)
	[ "$(oracle | field peak_used_bytes)" -le "$limit" ] ||
		fail "beside exports that are $1, $(oracle | field peak_used_bytes) of $limit were held"
	kill -9 "$(field pid <"$work/left")"
	wait $! 2>/dev/null
}

# Other processes get the free memory, except for at most one context, because exports may look like
# a context.
test_exports_left() {
	local way least granted
	for way in gone kept; do
		least=$((4 * gib - 2 * context - 48 * mib))
		[ "$way" = gone ] || least=$((least - gib))
		for _ in 1 2 3; do # the agent may have answered late
			beside_exports "$way"
			[ "${granted:-0}" -lt "$least" ] || break
		done
		[ "${granted:-0}" -ge "$least" ] || fail "beside exports that are $way: granted $granted, want $least"
	done
}

# Imported memory counts from its import on, mapped or not, whatever its exporter does.
test_handed_on() {
	local test output limit=$((2 * gib))
	for test in handed-on handed-on-pools; do
		machine 2>/dev/null
		agent=-honest
		pages "$test" "$limit"
		output=$(become_limited "$test" "$tests/sharing" "$test" 2>/dev/null) || fail "$test: $output"
		[ "$(oracle | field peak_used_bytes)" -le "$limit" ] ||
			fail "$test: $(oracle | field peak_used_bytes) of $limit were held"
		[ "$(echo "$output" | field taken)" -ge 2 ] || fail "$test: $output"
	done
}

# Imported memory of a dead process counts for the importer's container, on the memory's GPU.
# Another GPU may be current at the import.
test_inherited() {
	local way gpu output limit=$((4 * gib))
	for way in ipc handle pool; do
		for gpu in 0 1; do
			machine 2>/dev/null
			agent=-honest
			pages "inherited-$way-$gpu" "$limit" "$limit"
			limited "inherited-$way-$gpu" "$tests/sharing" inherited "$way" "$gpu" >"$work/inherited" 2>&1 &
			for _ in {1..500}; do [ -s "$work/inherited" ] || sleep 0.02; done
			output=$(limited "inherited-$way-$gpu" "$workloads/fill" --hold 0.2 2>/dev/null)
			[ "$(echo "$output" | field granted_bytes)" -ge $((gib)) ] ||
				fail "beside an importer ($way, GPU $gpu): $output"
			[ "$(oracle | field peak_used_bytes)" -le "$limit" ] ||
				fail "beside an importer ($way, GPU $gpu), $(oracle | field peak_used_bytes) of $limit were held"
			kill -9 "$(field pid <"$work/inherited")"
			wait $! 2>/dev/null
			rm "$work/inherited"
		done
	done
}

test_images() {
	serve images -blind
	try images $((2 * gib)) images
	unserve images
}

# Lazily loaded code is refused if the limit has no room for the code.
test_late_code() {
	local output limit=$((2 * gib)) highest granted
	pages late "$limit"
	output=$(limited late timeout 60 "$tests/late_code" 2>"$work/errors") ||
		fail "late code: $(tail -n 3 "$work/errors")"
	highest=$(peak "$(echo "$output" | field pid)")
	granted=$(echo "$output" | field granted_bytes)
	[ "${highest:-$((limit + 1))}" -le "$limit" ] || fail "late code: held $highest"
	[ "${granted:-0}" -ge "$(least "$limit")" ] || fail "late code: granted $granted"
}

# below TEST LIMIT checks that the test's memory never exceeds the limit.
below() {
	local output highest
	pages "$1" "$2"
	output=$(become_limited "$1" "$tests/$program" "$1" 2>"$work/errors") || fail "$1: $(tail -n 3 "$work/errors")"
	highest=$(peak "$(echo "$output" | field pid)")
	[ "${highest:-$(($2 + 1))}" -le "$2" ] || fail "$1: held $highest of $2"
}

# Allocations in the unused part of charged memory are charged too.
test_slack() { below slack $((2 * gib)); }

# A graph's memory counts at any nesting depth of its node.
test_deep_graphs() { below deep-graphs $((2 * gib)); }

# An excess charge for memory that the driver attributes to another process does not make room for
# more memory.
test_import_credit() { program=sharing below import-credit $((3 * gib)); }

test_small_pieces() {
	try small $((2 * gib)) small-pieces
	serve small-blind -blind
	try small-blind $((2 * gib)) small-pieces
}

# A library that is being opened may initialise CUDA while another thread initialises CUDA.
test_plugin() {
	try plugin $((2 * gib)) plugin "$tests/plugin.so"
}

# No process of a tenant opens the management library.
test_nvml() {
	try nvml $((2 * gib)) nvml "$gpusim/libnvidia-ml"
}

# A context counts with the size that the agent measured, also on a small card.
test_small_context() {
	local output limit=$((400 * mib))
	pages tiny "$limit"
	output=$(limited tiny "$workloads/fill" 2>/dev/null)
	[ "$(echo "$output" | field granted_bytes)" -ge $((limit - 2 * context)) ] ||
		fail "beside a context of $context in $limit: $output"
}

# Calls of an exiting program have their native results, whenever the driver shuts down. No charge
# remains.
test_exit() {
	local mode real output limit=$((2 * gib)) granted late
	for mode in never handler destructor; do
		{ grep -v '^exit ' "$base" && echo "exit = $mode"; } >"$own/exit.conf"
		GPUSIM_PROFILE=$own/exit.conf
		machine 2>/dev/null
		real=$(native timeout 20 "$tests/unkind" exit 2>&1) || fail "natively, exit with $mode: $real"
		late=$(grep -c 'registered before.*free 4' <<<"$real")
		[ "$late" -eq "$([ "$mode" = handler ] && echo 1 || echo 0)" ] || fail "exit with $mode: $real"
		pages exit "$limit:$context:500000"
		output=$(become_limited exit "$tests/unkind" exit 2>&1) || fail "exit with $mode: $output"
		[ "$output" = "$real" ] || fail "exit with $mode: $output, natively $real"
		[ "$(held)" -eq 0 ] || fail "exit with $mode: $(held) bytes are held"
		output=$(limited exit "$workloads/fill" 2>/dev/null)
		granted=$(echo "$output" | field granted_bytes)
		[ "${granted:-0}" -ge "$(least "$limit")" ] || fail "after exit with $mode: granted $granted"
	done
}

# If the agent's answers are unusable, no program hangs, the limit holds, and estimates remain.
test_useless_agents() {
	local mode output limit=$((2 * gib)) highest granted
	for mode in -hang -deaf -late -garbage -close -zero -ones -blind gone; do
		serve useless "${mode/gone/-honest}"
		pages useless "$limit:0" # without the size of a context
		[ "$mode" != gone ] || unserve useless
		output=$(limited useless "$workloads/fill" 2>/dev/null)
		highest=$(peak "$(echo "$output" | field pid)")
		granted=$(echo "$output" | field granted_bytes)
		[ "${highest:-$((limit + 1))}" -le "$limit" ] || fail "agent $mode: held $highest"
		[ "${granted:-0}" -ge $((limit - unknown_context - limit / 100)) ] || fail "agent $mode: granted $granted"
		[ "${granted:-0}" -le $((limit - unknown_context)) ] || fail "agent $mode: granted $granted"
		echo "$output" | grep -q '"error_code":2' || fail "agent $mode: $output"
	done
}

# Memory for raised heaps and stacks is not granted to other processes before a kernel takes the
# memory.
test_late_heaps() {
	local output limit=$((context + 512 * mib)) highest granted raised sms
	sms=$(profile sm_count)
	raised=$((216 * mib + ${sms:-132} * 2048 * 256)) # including stacks for all threads
	serve heaps -honest
	pages heaps "$limit"
	output=$(limited heaps timeout 60 "$tests/heaps" late 2>"$work/errors") ||
		fail "late heaps: $(tail -n 3 "$work/errors")"
	highest=$(peak "$(echo "$output" | field pid)")
	granted=$(echo "$output" | field granted_bytes)
	[ "${highest:-$((limit + 1))}" -le "$limit" ] || fail "late heaps: held $highest of $limit"
	[ "${granted:-0}" -ge $((limit - context - raised - 24 * mib)) ] || fail "late heaps: granted $granted"
}

# A thread that is cancelled while it waits for the agent does not block other threads.
test_cancelled() {
	local mode child limit=$((2 * gib))
	for mode in -hang -deaf; do
		serve cancelled "$mode"
		pages cancelled "$limit:$gib" # larger than a context
		rm -f "$work/cancelled.out"
		limited cancelled timeout 30 "$tests/cancelled" >"$work/cancelled.out" 2>"$work/errors" &
		child=$!
		while kill -0 "$child" 2>/dev/null && [ ! -s "$work/cancelled.out" ]; do sleep 0.02; done
		serve cancelled -honest
		wait "$child" || fail "cancelled, agent $mode: $(cat "$work/errors")"
	done
}

# The interposer adds no cancellation points to functions.
test_cancelled_calls() {
	native timeout 30 "$tests/cancelled" calls 2>"$work/errors" || fail "cancelled calls, natively: $(cat "$work/errors")"
	pages calls "$((2 * gib)):$context:300000"
	limited calls timeout 30 "$tests/cancelled" calls 2>"$work/errors" || fail "cancelled calls: $(cat "$work/errors")"
}

if [ -n "${UNKIND_TESTS:-}" ]; then
	GPUSIM_PROFILE=${UNKIND_PROFILE:-$GPUSIM_PROFILE}
	machine 2>/dev/null
	agent=-honest
	$UNKIND_TESTS
	exit "$failures"
fi
test_waits module-loads library-loads first-allocation
test_exports
test_contexts_again
test_exports_left 2>/dev/null # the shell reports killed processes
test_handed_on
test_inherited 2>/dev/null # the shell reports killed processes
test_images
test_small_pieces
test_slack
test_import_credit
test_deep_graphs
test_plugin
test_nvml
test_useless_agents
test_late_heaps
test_cancelled
test_cancelled_calls
if [ -z "$given" ]; then
	GPUSIM_PROFILE=$profiles/r550-4060ti.conf
	machine 2>/dev/null
	test_small_context
	GPUSIM_PROFILE=$profiles/r580-h200.conf
	machine 2>/dev/null
fi
[ "$(profile lazy_loading)" = no ] || test_late_code
GPUSIM_PROFILE=$own/fine.conf
machine 2>/dev/null
agent=-honest
test_slack
GPUSIM_PROFILE=$own/constructor.conf
machine 2>/dev/null
test_waits constructor
test_exit
rm -rf "$own"

[ "$failures" -eq 0 ] || exit 1

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# This test runs programs under the interposer on the simulated GPU, and compares the results with
# the simulator's oracle. Usage: ways_test.sh LIBRARIES GPUSIM WORKLOADS MKPAGES [SANITIZER-LIBRARY]

# shellcheck source-path=SCRIPTDIR source=container.sh
. "$(dirname "$0")/container.sh"

check_way() {
	local way=$1 limit=$2 least=$3 output got highest
	# An agent that answers late, as on a busy machine, leaves too high a charge.
	for _ in 1 2 3; do
		pages way "$limit" "$limit"
		output=$(limited way "$workloads/fill" --way "$way" 2>"$work/stderr") ||
			fail "$way at $limit: $output $(cat "$work/stderr")"
		got=$(echo "$output" | field granted_bytes)
		highest=$(peak "$(echo "$output" | field pid)")
		if [ "${highest:-0}" -eq 0 ] || [ "$highest" -gt "$limit" ]; then
			fail "$way at $limit: physically held $highest"
		fi
		[ "${got:-0}" -lt "$least" ] || break
	done
	[ "${got:-0}" -ge "$least" ] || fail "$way at $limit: granted $got, want $least"
	echo "$output" | grep -q '"error_code":2' || fail "$way at $limit: not refused by 2: $output"
	[ "$(wc -l <"$work/stderr")" -eq 1 ] || fail "$way at $limit: $(cat "$work/stderr")"
}

# For every way of allocating, the memory is never above the limit, and is granted up to 1 % below
# the limit. A context is indivisible. A limit has room for at least two contexts, of which the
# process has one.
test_ways() {
	local way ways=() limit least
	while read -r way _; do
		lacks "$way" "$workloads/fill" --way "$way" --pieces 1 || ways+=("$way")
	done < <("$workloads/fill" --list)
	for limit in ${WAYS_LIMITS:-$gib $((2 * gib)) 3972844748}; do
		for way in "${ways[@]}"; do
			least=$(least "$limit")
			case $way in
			ctx* | green)
				least=$((limit / context * context - context))
				[ "$least" -gt 0 ] || fail "a limit of $limit holds no two contexts of $context"
				;;
			esac
			check_way "$way" "$limit" "$least"
		done
	done
}

# Processes of one container share the limit, whichever way of allocating they use.
test_shared_limit() {
	local limit=$((6 * gib)) way most=0 now sum=0 out ways=()
	pages shared "$limit"
	for way in alloc vmm async pitch array graph; do
		limited shared "$workloads/fill" --way "$way" --chunk 16MiB --delay 0.3 --hold 1 \
			>"$work/out.$way" 2>/dev/null &
		ways+=($!)
	done
	while [ -n "$(jobs -r)" ]; do
		now=$(held)
		[ "$now" -gt "$most" ] && most=$now
		sleep 0.02
	done
	wait "${ways[@]}" # only these jobs, because the agents are also children and stay
	for out in "$work"/out.*; do
		sum=$((sum + $(field granted_bytes <"$out") + context))
	done
	[ "$most" -le "$limit" ] || fail "six processes held $most of $limit"
	[ "$sum" -ge $((limit - limit / 100)) ] || fail "six processes were granted $sum of $limit"
}

# If the agent can measure, a page without a context size, or with too large a size, does not reduce
# grants.
test_corrected_context() {
	local limit=$((2 * gib)) hint output highest
	[ "$agent" = -honest ] || return
	for hint in $gib 0; do
		for _ in 1 2 3; do
			pages corrected "$limit:$hint"
			output=$(limited corrected "$workloads/fill" 2>/dev/null)
			highest=$(peak "$(echo "$output" | field pid)")
			[ "$highest" -le "$limit" ] || fail "a context charged $hint: held $highest"
			[ "$(echo "$output" | field granted_bytes)" -lt "$(least "$limit")" ] || break
		done
		[ "$(echo "$output" | field granted_bytes)" -ge "$(least "$limit")" ] ||
			fail "a context charged $hint: $output"
	done
}

# A killed process's memory is available to the next process at once.
test_killed_process() {
	local output
	pages killed "$gib"
	limited killed "$workloads/fill" --hold 100 >"$work/first" 2>/dev/null &
	while [ ! -s "$work/first" ]; do sleep 0.02; done
	kill -9 "$(field pid <"$work/first")"
	wait $! 2>/dev/null
	output=$(limited killed "$workloads/fill" 2>/dev/null)
	[ "$(echo "$output" | field granted_bytes)" -ge $((gib - context - gib / 100)) ] ||
		fail "after a kill: $output"
}

# Processes fill, free, and are killed at any moment. The memory never exceeds the limit, and no
# memory remains allocated.
test_storm() {
	local limit=$((4 * gib)) ways=(alloc vmm async pitch array graph module managed pool mipmap)
	local most=0 now i end=$((SECONDS + 6)) output pids=()
	pages storm "$limit"
	while [ $SECONDS -lt $end ]; do
		for i in 0 1 2 3 4 5; do
			if [ -n "${pids[$i]:-}" ] && kill -0 "${pids[$i]}" 2>/dev/null; then
				[ $((RANDOM % 4)) -eq 0 ] && kill -9 "${pids[$i]}"
				continue
			fi
			(become storm "$workloads/fill" --way "${ways[$((RANDOM % ${#ways[@]}))]}" \
				--chunk "$((RANDOM % 40 + 1))MiB" --threads 2 --hold 100) >/dev/null 2>&1 &
			pids[i]=$!
		done
		for i in 1 2 3 4 5; do
			now=$(held)
			[ "$now" -gt "$most" ] && most=$now
		done
	done
	kill -9 "${pids[@]}" 2>/dev/null
	wait "${pids[@]}" 2>/dev/null
	[ "$most" -le "$limit" ] || fail "in the storm, $most of $limit were held"
	[ "$most" -gt $((limit / 2)) ] || fail "the storm did not reach the limit: $most"
	output=$(become storm "$workloads/fill" 2>/dev/null)
	[ "$(echo "$output" | field granted_bytes)" -ge $((limit - context - limit / 100)) ] ||
		fail "after the storm: $output"
}

# A tenant writes zeros over the slots of its processes. The observed memory still counts. After the
# observation is cleared, only claims beyond the free memory are refused.
test_forged_page() {
	local output limit=$((3 * gib)) first=$((context + gib))
	pages forged "$limit"
	limited forged "$workloads/fill" --max "$gib" --hold 100 >"$work/forged.1" 2>/dev/null &
	while [ ! -s "$work/forged.1" ]; do sleep 0.02; done
	[ "$(held)" -eq "$first" ] || fail "the first process holds $(held)"
	dd if=/dev/zero of="$work/forged/usage" bs=4096 seek=1 count=16 conv=notrunc 2>/dev/null
	"$mkpages" -o "$work/forged" "$first" || fail "observe"
	output=$(limited forged "$workloads/fill" 2>/dev/null)
	[ "$(echo "$output" | field granted_bytes)" -ge $((limit - first - context - limit / 100)) ] ||
		fail "beside what was observed: $output"
	[ "$(peak "$(echo "$output" | field pid)")" -le $((limit - first)) ] ||
		fail "more than what was observed leaves: $output"
	kill -9 "$(field pid <"$work/forged.1")"
	wait $! 2>/dev/null
	"$mkpages" -o "$work/forged" 0 || fail "observe"
	output=$(limited forged "$workloads/fill" 2>/dev/null)
	[ "$(echo "$output" | field granted_bytes)" -ge $((limit - context - limit / 100)) ] ||
		fail "after the observation was cleared: $output"
}

test_what_programs_see() {
	local output
	pages seen $((2 * gib)) $((3 * gib))
	output=$(limited seen "$workloads/info" 2>&1)
	[ "$(echo "$output" | grep -o "\"total_mem\":$((2 * gib))\|\"total_mem\":$((3 * gib))" | wc -l)" -eq 2 ] ||
		fail "CUDA shows other totals: $output"
	[ "$(echo "$output" | grep -o "\"total\":$((2 * gib))\|\"total\":$((3 * gib))" | wc -l)" -eq 4 ] ||
		fail "NVML shows other totals: $output"
	output=$(limited seen "$workloads/fill" --max 256MiB 2>&1)
	[ "$(echo "$output" | field free_seen_after)" -eq $((2 * gib - context - 256 * mib)) ] ||
		fail "free memory is not what is left of the limit: $output"
}

# A process cannot allocate on a GPU that is visible but not on the page.
test_gpu_that_was_not_given() {
	local output
	pages one "$gib"
	output=$(limited one "$workloads/fill" --device 1 2>&1)
	echo "$output" | grep -q '"error_code":2' || fail "the second GPU: $output"
	[ "$(peak "$(echo "$output" | field pid)")" = "" ] || fail "a GPU that is not on the page granted memory: $output"
}

# Allocations on two GPUs in the same address range are charged to the right GPU.
test_two_gpus() {
	local seed output granted highest limit=${WAYS_LIMITS:-$((2 * gib))}
	for seed in "" 1 2 3; do
		pages two "$limit" "$limit"
		# shellcheck disable=SC2086 # an empty seed must not become an argument
		output=$(limited two "$(dirname "$mkpages")/two_gpus" $seed 2>"$work/stderr") ||
			fail "two GPUs, seed ${seed:-none}: $output $(cat "$work/stderr")"
		granted=$(echo "$output" | field granted_bytes)
		highest=$(peak "$(echo "$output" | field pid)")
		[ "${highest:-$((limit + 1))}" -le "$limit" ] ||
			fail "two GPUs, seed ${seed:-none}: held $highest of $limit on one GPU"
		[ "${granted:-0}" -ge "$(least "$limit")" ] ||
			fail "two GPUs, seed ${seed:-none}: granted $granted, want $(least "$limit")"
	done
}

# The limit follows a GPU's UUID, not its number.
test_permuted_devices() {
	local output
	pages permuted "$gib" $((3 * gib))
	output=$(CUDA_VISIBLE_DEVICES=1,0 limited permuted "$workloads/fill" --device 0 2>/dev/null)
	[ "$(echo "$output" | field total_mem_seen)" -eq $((3 * gib)) ] ||
		fail "with CUDA_VISIBLE_DEVICES=1,0: $output"
	[ "$(echo "$output" | field granted_bytes)" -ge $((3 * gib - context - 30 * mib)) ] ||
		fail "with CUDA_VISIBLE_DEVICES=1,0: $output"
}

test_limit_smaller_than_a_context() {
	local output
	pages small $((context / 2))
	output=$(limited small "$workloads/fill" 2>&1)
	echo "$output" | grep -q "nri-vgpu: refused $((context / mib)) MiB for a context" || fail "no clear line: $output"
	echo "$output" | grep -q 'CUDA_ERROR_OUT_OF_MEMORY' || fail "a context in half of what it takes: $output"
}

# A changed limit applies to a running process.
test_limit_changes() {
	local output
	pages changing "$gib"
	limited changing "$workloads/fill" --delay 1 >"$work/changed" 2>/dev/null &
	sleep 0.5
	"$mkpages" -u "$work/changing" "${uuids[0]}=$((2 * gib)):$context" || fail "update"
	wait $!
	output=$(cat "$work/changed")
	[ "$(echo "$output" | field granted_bytes)" -ge $((2 * gib - context - 20 * mib)) ] ||
		fail "after the limit was raised: $output"
}

# A limit below the used memory frees nothing. Claims are refused until the use has fallen.
test_limit_is_lowered() {
	local output
	pages lowered $((2 * gib))
	limited lowered "$workloads/fill" --max $((gib + 256 * mib)) --hold 2 >"$work/lowered.1" 2>/dev/null &
	while [ ! -s "$work/lowered.1" ]; do sleep 0.02; done
	"$mkpages" -u "$work/lowered" "${uuids[0]}=$gib:$context" || fail "update"
	[ "$(held)" -ge $((gib + 256 * mib)) ] || fail "lowering a limit took memory away: $(held)"
	output=$(limited lowered "$workloads/fill" 2>/dev/null)
	echo "$output" | grep -q CUDA_ERROR_OUT_OF_MEMORY || fail "above a lowered limit: $output"
	wait $!
	output=$(limited lowered "$workloads/fill" 2>/dev/null)
	[ "$(echo "$output" | field granted_bytes)" -ge $((gib - context - gib / 100)) ] ||
		fail "under a lowered limit, after use has fallen: $output"
}

# Without whole pages, the interposer refuses CUDA, and writes the reason in one line.
test_fails_closed() {
	local output broken
	for broken in absent corrupt foreign no_usage; do
		pages "$broken" "$gib"
		case $broken in
		absent) rm "$work/absent/limits" ;;
		corrupt) printf '\377' | dd of="$work/corrupt/limits" bs=1 seek=100 conv=notrunc 2>/dev/null ;;
		foreign) echo hello >"$work/foreign/limits" ;;
		no_usage) rm "$work/no_usage/usage" ;;
		esac
		output=$(limited "$broken" "$workloads/fill" 2>"$work/stderr")
		echo "$output" | grep -q '"error_code":800' || fail "$broken: $output"
		[ "$(grep -c '^nri-vgpu: ' "$work/stderr")" -eq 1 ] || fail "$broken: $(cat "$work/stderr")"
	done
	output=$(GPUSIM_STATE=$work/sim/state LD_LIBRARY_PATH=$driver_libraries \
		LD_PRELOAD=$sanitizer$libraries/libcuda.so.1 "$workloads/fill" 2>&1)
	echo "$output" | grep -q '"error_code":800' || fail "without any page: $output"
}

# Without a driver, programs get the error for "no device".
test_no_driver() {
	local output
	pages nodriver "$gib"
	output=$(NRI_VGPU_DIR=$work/nodriver LD_PRELOAD=$sanitizer$libraries/libcuda.so.1 \
		"$workloads/fill" --lookup dlsym 2>&1)
	echo "$output" | grep -q '"error_code":100' || fail "without a driver: $output"
}

# The interposer does not use another copy of this library in the search path as the driver.
test_own_copies() {
	local output
	pages copies "$gib"
	mkdir -p "$work/copy"
	cp "$libraries"/*.so.1 "$work/copy"
	output=$(NRI_VGPU_DIR=$work/copies GPUSIM_STATE=$work/sim/state \
		LD_LIBRARY_PATH=$work/copy:$libraries:$driver_libraries \
		LD_PRELOAD=$sanitizer$libraries/libcuda.so.1 timeout 20 "$workloads/fill" 2>&1)
	echo "$output" | grep -q '"error_code":2' || fail "with a copy in the path: $output"
}

test_by_exported_names() {
	local output
	pages dlsym "$gib"
	output=$(limited dlsym "$workloads/fill" --lookup dlsym 2>/dev/null)
	[ "$(peak "$(echo "$output" | field pid)")" -le "$gib" ] || fail "by dlsym: $output"
}

# A process that never calls CUDA is not affected.
test_innocent_process() {
	local output
	mkdir -p "$work/none"
	output=$(limited none sh -c 'echo fine' 2>&1)
	[ "$output" = fine ] || fail "a process without CUDA printed: $output"
}

if [ -n "${WAYS_TESTS:-}" ]; then
	for test in $WAYS_TESTS; do "$test"; done
	[ "$failures" -eq 0 ]
	exit
fi
test_ways
test_shared_limit
test_corrected_context
test_killed_process
test_storm 2>/dev/null # the shell reports killed processes
test_forged_page 2>/dev/null # the shell reports killed processes
test_what_programs_see
test_gpu_that_was_not_given
test_two_gpus
test_permuted_devices
test_limit_smaller_than_a_context
test_limit_changes
test_limit_is_lowered
test_fails_closed
test_no_driver
test_own_copies
test_by_exported_names
test_innocent_process

[ "$failures" -eq 0 ] || exit 1

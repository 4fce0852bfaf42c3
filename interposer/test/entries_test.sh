#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# This test covers every way to reach the driver in a dynamic program, on the simulated GPU. The
# test also covers the programs' view of their container's processes. Usage: entries_test.sh LIBRARIES
# GPUSIM WORKLOADS MKPAGES [SANITIZER-LIBRARY]

# shellcheck source-path=SCRIPTDIR source=container.sh
. "$(dirname "$0")/container.sh"
programs=$(dirname "$mkpages")
# The limit of most of these programs is 512 MiB and a context.
limit=$((context + 512 * mib))
sms=$(profile sm_count)
sms=${sms:-132}

check_entry() {
	local output
	pages entry "$limit"
	output=$(limited entry "$programs/entries" "$@" 2>&1) || fail "entry $*: $output"
	"$mkpages" "$work/entry" "${uuids[0]}=$limit"
}

# A new linker namespace has a separate C library, and cannot contain a sanitizer.
check_namespace() {
	[ -n "${sanitizer:-}" ] || check_entry namespace "$1"
}

test_entries() {
	local entry
	for entry in soname plain deepbind default next proc proc-v2 fork fork-after fork-exec; do
		check_entry "$entry"
	done
	check_entry path "$driver_libraries/libcuda.so.1"
	check_entry path "$driver_libraries/../$(names)/libcuda.so.1"
	for entry in libcuda.so.1 libcuda.so "$driver_libraries/libcuda.so.1"; do
		check_namespace "$entry"
	done
	# The agent detects uncharged memory if the driver reports the memory of processes.
	[ "$agent" = -honest ] || return 0
	check_entry behind "$driver_libraries/libcuda.so.1"
	# A sanitizer's library rejects RTLD_DEEPBIND.
	[ -n "$sanitizer" ] ||
		ENTRY_MODULE=$programs/entry_module.so check_entry behind-module "$driver_libraries/libcuda.so.1"
}

# The limit applies to a program and to a module that are linked to the driver.
test_linked() {
	local output
	check_entry module "$programs/entry_module.so"
	check_entry module "$programs/entry_linked.so"
	pages linked "$limit"
	output=$(limited linked "$programs/entries_linked" program 2>&1) || fail "a linked program: $output"
	output=$(limited linked "$programs/entries_linked" default 2>&1) || fail "a linked program: $output"
}

# Programs and modules whose own run path contains the driver, as in Nix builds, find the driver
# natively and under limits.
test_runpaths() {
	local entry program where
	mkdir -p "$programs/beside"
	# All profiles use the same link, because the tests of two profiles may run at once.
	ln -sf "$gpusim/libcuda.so.1" "$gpusim/libnvidia-ml.so.1" "$programs/beside/"
	for entry in entries_runpath entries_rpath entries_origin "entries module $programs/entry_runpath.so"; do
		read -r program where <<<"$entry"
		# shellcheck disable=SC2086 # its words
		GPUSIM_STATE=$work/sim/state "$programs/$program" ${where:-soname} >/dev/null 2>"$work/natively"
		# A sanitizer calls the loader for the program, and has no run path.
		[ -z "$sanitizer" ] && grep -q 'libcuda.so.1: cannot open' "$work/natively" && fail "$entry does not find the driver natively: $(cat "$work/natively")"
		pages runpath "$limit"
		# shellcheck disable=SC2086 # its words
		(become runpath env -u LD_LIBRARY_PATH "$programs/$program" ${where:-soname}) 2>"$work/limited" ||
			fail "$entry: $(cat "$work/limited")"
	done
}

# The runtime of AddressSanitizer must be the first loaded library. The test disables that check, as
# users do.
test_instrumented() {
	local output
	[ -z "$sanitizer" ] || return 0
	pages instrumented "$limit"
	output=$(ASAN_OPTIONS='' limited instrumented "$programs/entries_instrumented" soname 2>&1) &&
		fail "AddressSanitizer accepts another first library: update the README"
	echo "$output" | grep -q 'ASan runtime does not come first' || fail "a program with AddressSanitizer: $output"
	output=$(ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0 \
		limited instrumented "$programs/entries_instrumented" soname 2>&1) ||
		fail "a program with AddressSanitizer, as the README describes: $output"
}

# A container sees only its own processes, by the pids in its own namespace, and no killed
# processes.
test_processes() {
	local output i
	pages listed $((4 * gib))
	pages others $((4 * gib))
	limited listed "$programs/processes" 0 0 || fail "processes of an idle container"
	for i in 1 2 3; do
		limited "$([ "$i" = 3 ] && echo others || echo listed)" "$workloads/fill" --max 256MiB \
			--hold 100 >"$work/listed.$i" 2>/dev/null &
		while [ ! -s "$work/listed.$i" ]; do sleep 0.02; done
	done
	limited listed "$programs/processes" 2 $((2 * (context + 256 * mib))) || fail "two processes"
	limited others "$programs/processes" 1 $((context + 256 * mib)) || fail "the other container"
	kill -9 "$(field pid <"$work/listed.1")"
	wait %1 2>/dev/null
	limited listed "$programs/processes" 1 $((context + 256 * mib)) || fail "after a kill"
	output=$(limited listed "$workloads/info" --no-cuda)
	echo "$output" | grep -q "\"used\":$((context + 256 * mib))," || fail "NVML counts the dead: $output"
}

# A container with a MIG device sees its own processes on the device, with the device's instances.
test_mig_processes() {
	"$gpusim/gpusim" destroy "$work/sim"
	rm -rf "$work/sim"
	mkdir "$work/sim"
	printf '[gpu]\nmemory = 16GiB\n[mig 3g.8gb]\n' >"$work/mig.conf"
	"$gpusim/gpusim" create --config "$work/mig.conf" "$work/sim" >/dev/null || exit 1
	mapfile -t uuids < <(oracle | grep -o '"uuid":"MIG-[^"]*"' | cut -d'"' -f4)
	pages mig $((4 * gib))
	serve mig
	limited mig "$workloads/fill" --max 256MiB --hold 100 >"$work/mig.1" 2>/dev/null &
	while [ ! -s "$work/mig.1" ]; do sleep 0.02; done
	limited mig "$programs/processes" 1 $((context + 256 * mib)) || fail "a process on a MIG device"
}

# Memory passed between processes is charged on both sides. No agent measures the end of the export.
test_imports() {
	serve imports -blind
	pages imports $((2 * gib))
	limited imports "$programs/imports" || fail "imports"
}

# A destroyed pool in use is charged until its last allocation is freed.
test_pools() {
	pages pools $((2 * gib))
	limited pools "$programs/pools" || fail "destroyed pools"
}

# Pools that keep freed memory never grow beyond the limit.
test_exportable() {
	local output limit=$((context + 512 * mib)) highest
	pages exportable "$limit"
	output=$(limited exportable timeout 60 "$programs/exportable" 2>"$work/errors") ||
		fail "exportable pools: $(tail -n 3 "$work/errors")"
	highest=$(peak "$(echo "$output" | field pid)")
	[ "${highest:-$((limit + 1))}" -le "$limit" ] || fail "exportable pools: held $highest of $limit"
}

# A context's memory for kernels counts towards the limit too.
test_heaps() {
	local output
	pages heaps "$limit"
	output=$(limited heaps "$programs/heaps" 2>/dev/null) || fail "heaps: $output"
	[ "$(peak "$(echo "$output" | field pid)")" -le "$limit" ] || fail "heaps: more than the limit: $output"
}

# Physical memory is charged as long as a handle or a mapping of the memory exists.
test_mappings() {
	pages mappings $((2 * gib))
	limited mappings "$programs/mappings" || fail "mappings"
}

# Memory held by a multicast object stays charged. With an agent, the charge ends when the memory is
# freed.
test_multicast() {
	local output highest major limit=$((2 * gib))
	major=$(profile cc_major)
	[ "${major:-9}" -ge 9 ] || return 0 # the card does not support multicast
	serve multicast -blind
	pages multicast "$limit"
	output=$(limited multicast "$programs/multicast" 2>"$work/errors") || fail "multicast: $(cat "$work/errors")"
	highest=$(peak "$(echo "$output" | field pid)")
	[ "${highest:-$((limit + 1))}" -le "$limit" ] || fail "multicast: held $highest of $limit: $output"
	[ "$(echo "$output" | field granted_bytes)" -ge $((limit - context - limit / 100)) ] ||
		fail "multicast: $output"
	serve multicast -honest
	pages multicast "$limit"
	output=$(limited multicast "$programs/multicast" measured 2>&1) || fail "multicast, measured: $output"
}

# Memory of a green context stays charged until the primary context ends, and no longer.
test_green() {
	! lacks "green contexts" "$workloads/fill" --way green --pieces 1 || return 0
	serve green -blind
	pages green $((2 * gib))
	limited green "$programs/green" || fail "memory of a green context"
}

# Memory that an array or a descriptor keeps stays charged. With an agent, the charge ends when the
# memory is freed.
test_kept() {
	local output highest limit=$((2 * gib))
	serve kept -blind
	pages kept "$limit"
	output=$(limited kept "$programs/kept" 2>"$work/errors") || fail "kept: $(cat "$work/errors")"
	highest=$(peak "$(echo "$output" | field pid)")
	[ "${highest:-$((limit + 1))}" -le "$limit" ] || fail "kept: held $highest of $limit: $output"
	[ "$(echo "$output" | field granted_bytes)" -ge $((limit - context - limit / 100)) ] ||
		fail "kept: $output"
	[ "$agent" = -honest ] || return 0
	serve kept -honest
	pages kept "$limit"
	output=$(limited kept "$programs/kept" measured 2>&1) || fail "kept, measured: $output"
}

# A device that does not exist is refused with the driver's error. A device outside the container is
# refused as a device without memory.
test_ordinals() {
	local output
	output=$(native "$programs/ordinals" 0 2>&1) || fail "ordinals, natively: $output"
	[ -z "$output" ] || echo "$output" # functions that the driver lacks
	pages ordinals $((2 * gib))
	output=$(limited ordinals "$programs/ordinals" 2 2>&1) || fail "ordinals: $output"
	pages ordinals-both $((2 * gib)) $((2 * gib))
	output=$(limited ordinals-both "$programs/ordinals" 0 2>&1) || fail "ordinals of two: $output"
}

# asked prints the free memory that the program meminfo has read.
asked() {
	local told
	echo >&"${meminfo[1]}"
	read -r -u "${meminfo[0]}" told && echo "$told" | field free
}

# The free memory exceeds neither the rest of the limit nor the rest of the shared GPU.
test_meminfo() {
	local limit=$((12 * gib)) gpu=$((16 * gib)) output
	pages meminfo "$limit"
	coproc meminfo { become meminfo "$programs/meminfo" "$limit"; }
	# shellcheck disable=SC2154 # coproc's
	local process=$meminfo_PID questions=${meminfo[1]}
	output=$(asked)
	[ "${output:-0}" -eq $((limit - context)) ] || fail "free of $limit: ${output:-none}"
	native "$workloads/fill" --max $((8 * gib)) \
		--hold 100 >"$work/neighbour" &
	while [ ! -s "$work/neighbour" ]; do sleep 0.02; done
	output=$(asked)
	[ "${output:-0}" -eq $((gpu - $(held))) ] || fail "free beside a neighbour: ${output:-none}, the GPU has $((gpu - $(held)))"
	output=$(limited meminfo "$workloads/info" --no-cuda | field free)
	[ "${output:-0}" -eq $((gpu - $(held))) ] || fail "free beside a neighbour, by NVML: ${output:-none}"
	kill -9 "$(field pid <"$work/neighbour")"
	wait $! 2>/dev/null
	output=$(asked)
	[ "${output:-0}" -eq $((limit - context)) ] || fail "free when the neighbour is gone: ${output:-none}"
	exec {questions}>&-
	wait "$process" || fail "meminfo"
}

# check_load WHAT COMMAND… runs a load of copies in the container `copies`, which has 30 % of the time.
check_load() {
	local what=$1 output took wall
	shift
	output=$(limited copies "$@" "$programs/copies" load) || fail "$what: $output"
	wall=$(echo "$output" | field wall_ns)
	took=$(oracle | grep -o "{\"pid\":$(echo "$output" | field pid),[^]]*\]" | field gpu_time_ns)
	# The start may take 50 ms more. On a busy machine much of the limit may stay unused.
	if [ "$took" -gt $((wall * 32 / 100 + 50000000)) ] || [ "$took" -lt $((wall / 10)) ]; then
		fail "$what had $took ns of $wall, want 30 %"
	fi
}

# Copies of any shape within a device count towards the limit on GPU time. The limit does not follow a
# clock that the program defines.
test_copies() {
	pages copies "$((4 * gib)):$context:300000" "$((4 * gib)):$context:300000"
	limited copies "$programs/copies" || fail "copies"
	check_load "a load of copies" env
	check_load "a load of copies with a fast clock" env FAST_CLOCK_OF="$libraries/libcuda.so.1" \
		LD_PRELOAD="$sanitizer$programs/fast_clock.so:$libraries/libcuda.so.1:$libraries/libnvidia-ml.so.1"
}

# Each function that launches work counts towards the limit on GPU time.
test_launches() {
	pages launches "$gib:$context:300000"
	limited launches "$programs/launches" || fail "launches"
}

# A kernel that ends with an exception breaks its context, until the program ends the context.
test_trapped() {
	local end
	for end in reset destroy; do
		pages "trapped-$end" "$gib:$context:300000"
		limited "trapped-$end" timeout 60 env GPUSIM_TOOL="$gpusim/gpusim" "$programs/trapped" "$end" ||
			fail "trapped $end"
	done
}

# mps runs the Multi-Process Service's daemon for GPU 0.
mps() {
	env CUDA_MPS_PIPE_DIRECTORY="$work/pipes" CUDA_MPS_LOG_DIRECTORY="$work/logs" \
		GPUSIM_STATE="$work/sim/state" "$gpusim/nvidia-cuda-mps-control" "$@" 2>/dev/null
}

# full NAME [VARIABLE=VALUE…] prints the rate per second of kernels that fill the GPU for 1 ms.
full() {
	local name=$1
	shift
	limited "$name" env CUDA_MPS_PIPE_DIRECTORY="$work/pipes" "$@" "$workloads/spin" \
		--kernel-us 1000 --blocks $((sms * 32)) --count 100 2>"$work/error" | field kernels_per_s
}

# MPS limits a program to a part of the GPU, whatever part the program requests, and without a limit
# on time. CUDA fails if MPS does not enforce the limit.
test_mps() {
	local rate
	pages mps "$limit:$context:250000:$sms"
	mps -d || fail "the daemon does not start"
	rate=$(full mps)
	{ [ "${rate:-0}" -ge 200 ] && [ "$rate" -le 251 ]; } || fail "25 % of the GPU did $rate kernels a second, want 250"
	rate=$(full mps CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=90)
	[ "${rate:-999}" -le 251 ] || fail "a program that claims 90 % did $rate kernels a second, want 250"
	rate=$(full mps CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=10.0)
	[ "${rate:-999}" -le 101 ] || fail "a program that wants 10 % did $rate kernels a second, want 100"
	rate=$(full mps CUDA_MPS_PIPE_DIRECTORY="$work/nowhere")
	[ -z "$rate" ] || fail "a program beside MPS did $rate kernels a second, want none"
	grep -q 'MPS does not hold this process' "$work/error" || fail "the interposer logged: $(cat "$work/error")"
	echo quit -t 0 | mps
	rate=$(full mps)
	[ -z "$rate" ] || fail "a program without the daemon did $rate kernels a second, want none"
}

test_entries
test_linked
test_runpaths 2>/dev/null # the shell reports aborted processes
test_instrumented
test_mps
test_imports
test_pools
test_exportable
test_heaps
test_mappings
test_multicast
test_kept
test_green
test_ordinals
test_copies
test_launches
test_trapped
test_meminfo 2>/dev/null # the shell reports killed processes
test_processes 2>/dev/null # the shell reports killed processes
test_mig_processes

[ "$failures" -eq 0 ] || exit 1

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034 # other scripts use the variables
#
# This file defines a simulated machine with two GPUs, and containers on the machine. The tests
# source this file with the arguments LIBRARIES GPUSIM WORKLOADS MKPAGES [SANITIZER-LIBRARY].
# $GPUSIM_PROFILE selects the driver. An agent measures for the containers, if the driver reports
# the memory of processes.

set -u
libraries=$(realpath "${1:?}")
gpusim=$(realpath "${2:?}")
workloads=$(realpath "${3:?}")
mkpages=$(realpath "${4:?}")
sanitizer=${5:+$5:}
work=$(mktemp -d) || exit 1
declare -A agents
trap 'kill $(jobs -p) "${agents[@]}" 2>/dev/null; wait; "$gpusim/gpusim" destroy "$work/sim"; rm -rf "$work"' EXIT
# Programs end without freeing their memory, and the leak checker does not scan the mapping with the
# records of this memory.
export ASAN_OPTIONS=detect_leaks=0
set +m
failures=0
mib=1048576
gib=1073741824

fail() {
	echo "FAIL: $*"
	failures=$((failures + 1))
}

oracle() { "$gpusim/gpusim" oracle --json "$work/sim"; }

# profile KEY prints the value of the key in the profile.
profile() { sed -n "s/^$1 *= *//p" "${GPUSIM_PROFILE:-/dev/null}"; }

# native COMMAND… runs a program without the interposer.
native() { GPUSIM_STATE=$work/sim/state LD_LIBRARY_PATH=$driver_libraries "$@"; }

# names prints the branch of the driver's library.
names() { oracle | sed -n 's/.*"names":"\([^"]*\)".*/\1/p'; }

# lacks WHAT COMMAND… succeeds if a native run shows that the driver lacks a function that the
# program needs. lacks prints a note, and the test skips that part.
lacks() {
	local what=$1 output
	shift
	output=$(native "$@" 2>/dev/null)
	[ "$(field error_code <<<"$output")" = 500 ] || return 1
	echo "skipped: $what, because the driver has no $(sed -n 's/.*"call":"\([^"]*\)".*/\1/p' <<<"$output")"
	[ "$(names)" != r580 ] || fail "a driver 580 lacks what $what needs"
}

# machine creates the tests' machine anew. machine takes no arguments: $GPUSIM_PROFILE sets the
# driver's behaviour.
# shellcheck disable=SC2120
machine() {
	if [ $# -gt 0 ]; then
		echo "FAIL: machine takes no arguments, and was given: $*"
		exit 1
	fi
	[ ! -d "$work/sim" ] || "$gpusim/gpusim" destroy "$work/sim"
	rm -rf "$work/sim"
	mkdir "$work/sim"
	"$gpusim/gpusim" create --gpus 2 --memory 16GiB "$work/sim" >/dev/null || exit 1
	# driver_libraries is the directory of the libraries with the names of the profile's driver.
	driver_libraries=$gpusim/drivers/$(names)
	[ -e "$driver_libraries/libcuda.so.1" ] || { echo "no $driver_libraries/libcuda.so.1" && exit 1; }
	mapfile -t uuids < <(oracle | grep -o '"uuid":"GPU-[^"]*"' | head -n 2 | cut -d'"' -f4)
	# context is the size of a context, which the agent of a host measures.
	rm -f "$work/native"
	native "$workloads/fill" --max 1 --hold 100 >"$work/native" 2>/dev/null &
	while [ ! -s "$work/native" ]; do sleep 0.02; done
	context=$(oracle | grep -o '"context_bytes": *[0-9]*' | head -n 1 | grep -o '[0-9]*$')
	kill -9 "$(field pid <"$work/native")"
	wait $! 2>/dev/null
	# agent is the mode of the agent of a test's containers: see agent.c.
	agent=-honest
	[ "$(profile nvml)" != not-available ] || agent=-blind
}

# serve NAME [MODE] stops the container's agent, and starts a new agent. Without MODE, the profile's
# driver selects the mode.
serve() {
	local dir=$work/$1
	unserve "$1"
	mkdir -p "$dir"
	rm -f "$dir/serving"
	# The agent must answer within 18 ms on any machine.
	nice -n -15 "$(dirname "$mkpages")/agent" "${2:-$agent}" "$work/sim/state" "$dir" >"$dir/serving" 2>/dev/null &
	agents[$1]=$!
	disown $! # tests do not wait for the agent as a job
	while [ ! -s "$dir/serving" ]; do sleep 0.01; done
}

unserve() {
	[ -n "${agents[$1]:-}" ] || return 0
	kill -9 "${agents[$1]}" 2>/dev/null
	unset "agents[$1]"
}

# pages NAME SIZE… makes pages with these limits on the GPUs, in order, and starts an agent for the
# container. The agent has measured contexts.
pages() {
	local name=$1 dir=$work/$1 devices=() i=0 size
	shift
	mkdir -p "$dir"
	for size in "$@"; do
		case $size in *:*) ;; *) size=$size:$context ;; esac
		devices+=("${uuids[$i]}=$size")
		i=$((i + 1))
	done
	"$mkpages" "$dir" "${devices[@]}" || exit 1
	[ -n "${agents[$name]:-}" ] || serve "$name"
}

# least LIMIT prints the least number of bytes that a process must be granted, besides its context.
least() {
	if [ "$agent" = -honest ]; then echo $(($1 - context - $1 / 100)); else echo $(($1 - 2 * context)); fi
}

# become NAME COMMAND… replaces this shell by a program, as in a container with these pages.
become() {
	local dir=$work/$1
	shift
	exec env NRI_VGPU_DIR="$dir" GPUSIM_STATE="$work/sim/state" LD_LIBRARY_PATH="$driver_libraries" \
		LD_PRELOAD="$sanitizer$libraries/libcuda.so.1:$libraries/libnvidia-ml.so.1" "$@"
}

# limited NAME COMMAND… runs a program in a container with these pages.
limited() { (become "$@"); }

# field NAME prints a number from the JSON line on standard input.
field() { grep -o "\"$1\": *[0-9]*" | head -n 1 | grep -o '[0-9]*$'; }

# peak PID prints the peak memory of an ended process on any GPU.
peak() {
	oracle | grep -o "{\"pid\":$1,[^]]*\]" | grep -o '"peak_bytes": *[0-9]*' |
		grep -o '[0-9]*$' | sort -n | tail -n 1
}

# held prints the bytes physically allocated on the first GPU.
held() { oracle | field used_bytes; }

# shellcheck disable=SC2119
machine 2>/dev/null # the shell reports killed processes

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# This script runs programs on a machine with the card and the driver of an H200. The script checks
# that the programs measure the figures recorded on real hardware (fidelity.c). The script also
# checks the test's sensitivity. A change of each parameter of the card, and of each cost of a call,
# by 20 % must put a figure out of bounds.
#   fidelity.sh BUILD_DIR
set -eu

out=$(cd "$1" && pwd)
profiles=$(cd "$(dirname "$0")/../profiles" && pwd)
driver=$profiles/r580-h200.conf
card=$profiles/cards/h200.conf
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# measure PROFILES [FIGURE]: returns 0, or 75 if a figure is out of bounds
measure() {
	files=$1
	shift
	"$out/gpusim" create --gpus 1 --memory 4GiB --seed 1 --profile "$files" "$work/machine"
	status=0
	GPUSIM_STATE=$work/machine/state GPUSIM_LIBCUDA=$out/libcuda.so.1 \
		timeout 60 "$out/test/fidelity" "$@" >"$work/log" 2>&1 || status=$?
	"$out/gpusim" destroy "$work/machine"
	return $status
}

fail() {
	echo "FAIL fidelity: $1"
	[ ! -s "$work/log" ] || cat "$work/log"
	failed=1
}

# seen WHAT FIGURE PROFILES checks that a change is out of bounds in two runs. A single run may be
# out of bounds by chance. The change may be within bounds in at most two runs, because a busy host
# may slow down a call that is too cheap.
seen() {
	off=0
	for _ in 1 2 3 4; do
		status=0
		measure "$3" "$2" || status=$?
		case $status in
		75) off=$((off + 1)) ;;
		0) ;;
		*) break ;;
		esac
		[ "$off" -lt 2 ] || return 0
	done
	fail "$1 is not seen by $2 (status $status)"
}

# scaled PERCENT: converts "2ms" to ns and scales it
scaled() {
	awk -v by="$1" '{
		unit = $0; sub(/^[0-9]+/, "", unit)
		n["ns"] = 1; n["us"] = 1e3; n["ms"] = 1e6; n["s"] = 1e9
		printf "%dns\n", ($0 + 0) * n[unit] * by / 100
	}'
}

# holds FIGURE: checks that a figure is within bounds at the fourth attempt at the latest. The pauses
# grow, because other work on a busy host may take some time.
holds() {
	for attempt in 1 2 3 4; do
		sleep $((5 * (attempt - 1)))
		status=0
		measure "$driver:$card" "$1" || status=$?
		[ "$status" -eq 75 ] || break
		echo "attempt $attempt of $1 was out of bounds: $(grep '^OFF' "$work/log")"
	done
	if [ "$status" -eq 0 ]; then cat "$work/log"; else fail "$1, status $status"; fi
}

# Each figure has a separate run, so that only figures distorted by a busy host are repeated.
for figure in pair gaps latency $("$out/test/fidelity" calls); do
	holds "$figure"
done

sed -n 's/^\([a-z_]*\) *= *\([0-9].*\)/\1 \2/p' "$card" >"$work/parameters"
while read -r key value; do
	case $key in
	slice | switch) figure=pair ;;
	gap) figure=gaps ;;
	*) fail "no recorded figure sees $key"; continue ;;
	esac
	for percent in 80 120; do
		echo "$key = $(echo "$value" | scaled $percent)" >"$work/changed.conf"
		seen "$key at $percent %" "$figure" "$driver:$card:$work/changed.conf"
	done
done <"$work/parameters"

# cost PERCENT CALL: prints the call's line with a scaled cost
cost() {
	awk -v call="$2" '$1 == call { print $2 }' "$work/costs" | scaled "$1" | sed "s/^/cost = $2 /"
}

# Calls that were recorded together are changed together. fidelity.c explains the calls below 100
# ns. TestH200Costs compares the other names of these calls.
sed -n 's/^cost *= *\([A-Za-z0-9_]*\) *\([0-9]*ns\)$/\1 \2/p' "$driver" >"$work/costs"
while read -r call ns; do
	[ "${ns%ns}" -ge 100 ] || continue
	case $call in
	cuMemGetInfo | cuMemAlloc | cuMemFree* | cuMem*Async_ptsz) continue ;;
	cuMemAlloc*) calls="$call cuMemFree${call#cuMemAlloc}" ;;
	*) calls=$call ;;
	esac
	for percent in 80 120; do
		for each in $calls; do cost $percent "$each"; done >"$work/changed.conf"
		seen "$calls at $percent %" "$call" "$driver:$card:$work/changed.conf"
	done
done <"$work/costs"

[ $failed -ne 0 ] || echo "ok   fidelity: every change by 20 % is seen"
exit $failed

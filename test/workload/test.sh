#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# This script checks the workloads without a driver and with wrong arguments. The usage is:
# test.sh DIRECTORY-OF-PROGRAMS

set -u
programs=${1:?usage: test.sh DIRECTORY-OF-PROGRAMS}
missing=/nonexistent/libcuda.so.1
failures=0

# expect STATUS TEXT COMMAND…: checks that the command ends with this status, and prints
# the text.
expect() {
	status=$1
	text=$2
	shift 2
	output=$("$@" 2>&1)
	got=$?
	if [ "$got" -ne "$status" ]; then
		echo "FAIL: $* ended with $got, not $status: $output"
		failures=$((failures + 1))
	fi
	case $output in
	*"$text"*) ;;
	*)
		echo "FAIL: $* did not print \"$text\": $output"
		failures=$((failures + 1))
		;;
	esac
}

for program in fill spin latency exchange info storm linger scenes card; do
	expect 0 "Usage:" "$programs/$program" --help
	expect 64 "unknown option" "$programs/$program" --nonsense
done
for program in fill spin latency exchange info storm scenes; do
	expect 64 "needs a value" "$programs/$program" --library
	expect 64 "not an option" "$programs/$program" nonsense
done
for program in fill spin latency exchange storm; do
	expect 1 '"message":' "$programs/$program" --library "$missing"
	expect 64 "bad value" "$programs/$program" --device=-1
	expect 1 "--lookup must be" "$programs/$program" --lookup guess
done
expect 0 '"message":' "$programs/info" --library "$missing" --nvml-library "$missing"
expect 0 'cuMemAllocPitch' "$programs/fill" --list
expect 0 'cuGraphLaunch' "$programs/spin" --list
expect 64 'unknown way "no"' "$programs/fill" --way no
expect 0 'Usage:' "$programs/pester" --help
expect 64 'unknown way "no"' "$programs/pester" --way no
expect 1 'cannot reach' "$programs/pester" --dir /nonexistent
expect 1 'cannot map' "$programs/pester" --dir /nonexistent --way forge
expect 0 'Usage:' "$programs/attack" --help
expect 64 'unknown way "no"' "$programs/attack" --way no
expect 64 '--address must be' "$programs/attack" --way scrape --address nowhere
expect 0 'ld.so.preload' "$programs/attack" --list
expect 0 '"attack":"grow","done":0' "$programs/attack" --dir /nonexistent --duration 0.1
expect 64 'unknown pattern "no"' "$programs/spin" --pattern no
expect 64 'bad value' "$programs/fill" --chunk 3parsecs
expect 64 'bad value' "$programs/fill" --chunk 99999999999GiB
expect 64 '--chunk must be' "$programs/fill" --chunk 0
expect 64 '--threads must be' "$programs/fill" --threads 0
expect 64 '--fraction must be' "$programs/fill" --fraction 1.1
expect 64 '--threads must be' "$programs/storm" --threads 257
expect 64 'unknown way "no"' "$programs/storm" --ways alloc,no
expect 64 '--largest must be' "$programs/storm" --largest 0
expect 64 '--depth must be' "$programs/exchange" --depth 0
expect 64 '--streams must be' "$programs/spin" --streams 65
expect 64 '--duration must be' "$programs/latency" --period-ms 0

expect 1 '"message":' "$programs/card" --library "$missing"
expect 64 '--look must be' "$programs/card" --look away
carried=$(dirname "$programs")/lib${programs##*/workload}/vgpu-workload
expect 64 'Usage:' "$carried"
expect 64 'Usage:' "$carried" nonsense
expect 0 'Usage:' "$carried" spin --help
expect 0 'cuMemAllocPitch' "$carried" fill --list

[ "$failures" -eq 0 ] || exit 1
echo "workload: ok"

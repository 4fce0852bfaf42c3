#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end tests, several local nodes at a time: pods, kubelets and
# time-outs are waited for more than anything is computed. What each says comes
# with its name in front, and is kept in build/e2e.
#
# What fails beside other nodes is run once more with the machine to itself, and is
# said to have been: nodes that share two processors make each other wait. Chaos is not,
# if a container had more than it was given or was disturbed.
#
#   NODES     how many nodes at a time (3; with 4, programs on two processors wait for
#             them more than for GPUs; more than 5 want more than 128 of
#             fs.inotify.max_user_instances)
#   CHAOS     how long chaos lasts (3m)
#   HOSTILE   how many hostile tenants there are meanwhile (2)
set -euo pipefail
cd "$(dirname "$0")/.."

nodes=${NODES:-3}
chaos=${CHAOS:-3m}
# More parts than this and their nodes' coming up costs more than it saves.
parts=6
logs=build/e2e
rm -rf "$logs"
mkdir -p "$logs"

build() { # DIRECTORY...: their tests, built once
  "${GO:-go}" test -c -ldflags=-w -o "$PWD/$logs/" "${@/#/./}"
}

# run NAME DIRECTORY ARGUMENT...: one test program, in its directory as go test does
run() {
  local name=$1 directory=$2
  printf '%s\n' "${@:2}" >"$logs/$name.command"
  shift 2
  if (cd "$directory" && "$OLDPWD/$logs/${directory##*/}.test" -test.v -test.parallel 4 -test.timeout 40m "$@" 2>&1) |
    tee "$logs/$name.log" | sed -u "s/^/$name: /"; then
    echo "e2e: $name passed"
  else
    echo "e2e: $name FAILED"
    echo "$name" >>"$logs/failed"
  fi
}

# start waits until there is room for one more node.
start() {
  while (($(jobs -rp | wc -l) >= nodes)); do wait -n || true; done
  run "$@" &
}

# again NAME: what of it failed, once more; all of it where no test did, but its node
again() {
  local name=$1 log=$logs/$1.log command failed
  if grep -qE '^panic: | BROKEN (over|unlimited|oversold|disturbed):' "$log"; then return 1; fi
  mapfile -t command <"$logs/$name.command"
  failed=$(grep -oP '^--- FAIL: \K\w+' "$log" | sort -u | paste -sd '|') || failed=
  echo "e2e: once more, alone: $name ${failed//|/ }"
  run "$name-again" "${command[@]}" ${failed:+-test.run "^($failed)\$"} # the last pattern counts
  ! grep -q "^$name-again\$" "$logs/failed"
}

# What holds shares of a GPU's time against their bounds every two seconds: beside other
# nodes, its programs wait for processors for longer than that leaves.
alone=TestSharesHoldWhileTheAgentIsKilled

# About how many seconds those take that take long; others are reckoned at 5.
slow='TestClosedWhileTheAPIServerIsAway 70 TestPrometheus 65 TestMPS 55 TestAgentGone 40
TestClosedWhenItBreaksInARequest 35 TestReadmes 28 TestPodsDeletedWhileCreated 20
TestPodThatFitsNoGPUIsEvicted 20 TestInjectionMethods 20 TestWhoGoesAroundIsDetectedAndStopped 20
TestGraphicsAreDetectedAndStopped 30
TestClosedAtBootWithTheAgentLate 18 TestGPULostAndBack 17 TestReleaseIsNotMissed 16
TestKubectlVgpu 15 TestTopOnATerminal 12 TestClosedWhileTheGuardHangs 12 TestHangingDriver 28
TestDialectsShareOneLedger 12 TestTwoPodsFillOneGPU 12 TestXIDs 11
TestClosedWhileTheAgentHangs 10 TestClosedWhenContainerdRestartsWithManyPods 10
TestMgctlTellsWhatTheOracleSays 10 TestMgctlWithAWholeGPU 10'

# tests_of PART: a pattern of its tests; each goes to the part that has least to do,
# the longest first
tests_of() {
  "$logs/e2e.test" -test.list . | grep -vx "$alone" |
    awk -v slow="$slow" 'BEGIN { n = split(slow, s); for (i = 1; i < n; i += 2) takes[s[i]] = s[i + 1] }
      { print (($1 in takes) ? takes[$1] : 5), $1 }' | sort -k 1,1nr -k 2 |
    awk -v parts="$parts" -v wanted="$1" '{ least = 1
      for (i = 2; i <= parts; i++) if (sum[i] < sum[least]) least = i
      sum[least] += $1
      if (least == wanted) { printf "%s%s", separator, $2; separator = "|" } }'
}

# Before anything else, which would wait for processors.
echo "e2e: building what nodes are made of, where it is not in the cache"
build/bin/localcluster build
# While there is no other node, as it compares the machine before and after.
build test/cluster
run cluster test/cluster -test.run '^TestDownLeavesNothing$' &
echo "e2e: building the tests"
build test/chaos test/e2e test/e2e/nodestatus test/e2e/helm test/volcano
wait
# The longest first.
start chaos test/chaos "-chaos.duration=$chaos" "-chaos.hostile=${HOSTILE:-2}"
start helm test/e2e/helm -test.run '^TestHelm$'
start next test/e2e/helm -test.run '^TestNext$'
start volcano test/volcano
for ((part = 1; part <= parts; part++)); do
  start "pods-$part" test/e2e "-e2e.name=e2e$part" -test.run "^($(tests_of "$part"))\$"
done
start node test/cluster -test.skip '^TestDownLeavesNothing$'
# What takes privileges away waits for what does not happen: make e2e-privileges.
start nodestatus test/e2e/nodestatus -test.skip '^TestEach(Right|Privilege)IsNeeded$'
wait
run alone test/e2e "-e2e.name=e2e$((parts + 1))" -test.run "^$alone\$"

touch "$logs/failed"
mapfile -t once <"$logs/failed"
for name in "${once[@]}"; do
  if again "$name"; then
    echo "e2e: $name passed at its second attempt: $logs/$name.log has the first"
    sed -i "/^$name\$/d" "$logs/failed"
  fi
done

if [[ -s $logs/failed ]]; then
  echo "e2e: these failed:" >&2
  while read -r name; do
    echo "e2e: $name, $logs/$name.log:" >&2
    grep -E '^ *--- FAIL|^FAIL|^panic' "$logs/$name.log" >&2 || tail -n 5 "$logs/$name.log" >&2
  done <"$logs/failed"
  exit 1
fi
echo "e2e: all passed"

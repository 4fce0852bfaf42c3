#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# This script runs the end-to-end tests on several local nodes at a time, because they
# mostly wait for pods, kubelets and time-outs. Each line of output begins with the name
# of its part. The script keeps the output in build/e2e.
#
# The script repeats a failed part while no other part runs, and reports the repetition.
# The reason is that nodes that share two processors delay each other. The script does
# not repeat chaos if a container got more than its share or was disturbed.
#
#   NODES     number of concurrent nodes (3; with 4, programs on two processors wait more for
#             processors than for GPUs; more than 5 need more than 128
#             fs.inotify.max_user_instances)
#   CHAOS     duration of chaos (3m)
#   HOSTILE   number of hostile tenants during chaos (2)
set -euo pipefail
cd "$(dirname "$0")/.."

nodes=${NODES:-3}
chaos=${CHAOS:-3m}
# More parts cost more time for starting their nodes than they save.
parts=6
logs=build/e2e
rm -rf "$logs"
mkdir -p "$logs"

build() { # DIRECTORY...: builds the tests of directories once
  "${GO:-go}" test -c -ldflags=-w -o "$PWD/$logs/" "${@/#/./}"
}

# run NAME DIRECTORY ARGUMENT...: runs a test program in its directory, as go test does.
run() {
  local name=$1 directory=$2 began=$SECONDS
  printf '%s\n' "${@:2}" >"$logs/$name.command"
  shift 2
  if (cd "$directory" && "$OLDPWD/$logs/${directory##*/}.test" -test.v -test.parallel 4 -test.timeout 40m "$@" 2>&1) |
    tee "$logs/$name.log" | sed -u "s/^/$name: /"; then
    echo "e2e: $name passed in $((SECONDS - began)) s"
  else
    echo "e2e: $name FAILED after $((SECONDS - began)) s"
    reasons "$name" | sed "s/^/$name: /"
    echo "$name" >>"$logs/failed"
  fi
}

# start waits for a free node and runs a part in the background.
start() {
  while (($(jobs -rp | wc -l) >= nodes)); do wait -n || true; done
  run "$@" &
}

# reasons NAME: prints the messages of a part's tests with the failed tests, or the end of
# its output. A message includes the following lines that are indented deeper.
reasons() {
  awk '/^ +[a-z0-9_]+\.go:[0-9]+: / { message = 1; print; next }
    message && /^        / { print; next }
    { message = 0 }
    /^ *--- FAIL|^FAIL|^panic/ { print; failed = 1 }
    END { exit !failed }' "$logs/$1.log" | tail -n 40 || tail -n 20 "$logs/$1.log"
}

# again NAME: repeats the failed tests of a part, or the whole part if the node failed
# but no test failed.
again() {
  local name=$1 log=$logs/$1.log command failed
  if grep -qE '^panic: | BROKEN (over|unlimited|oversold|disturbed):' "$log"; then return 1; fi
  mapfile -t command <"$logs/$name.command"
  failed=$(grep -oP '^--- FAIL: \K\w+' "$log" | sort -u | paste -sd '|') || failed=
  echo "e2e: repeating alone: $name ${failed//|/ }"
  run "$name-again" "${command[@]}" ${failed:+-test.run "^($failed)\$"} # the last pattern applies
  ! grep -q "^$name-again\$" "$logs/failed"
}

# alone is a test that checks shares of a GPU's time every two seconds. While other
# nodes run, the test's programs wait longer for processors than the bounds allow.
alone=TestSharesHoldWhileTheAgentIsKilled

# slow lists the approximate durations of the long tests in seconds. Other tests count
# as 5 s.
slow='TestFit 157 TestPrometheus 85 TestHAMisExamples 84 TestClosedWhileTheAPIServerIsAway 69 TestMPS 58
TestAgentGone 36 TestClosedWhenItBreaksInARequest 34 TestReadmes 30 TestGraphicsAreDetectedAndStopped 27
TestHangingDriver 26 TestQuotaCountsAllGPUs 24 TestResizeSurvivesKills 22
TestWhoGoesAroundIsDetectedAndStopped 22 TestKnobs 21 TestInjectionMethods 19
TestPodThatFitsNoGPUIsEvicted 18 TestResize 17 TestClosedWithTheStateFull 16
TestClosedAtBootWithTheAgentLate 15 TestClosedWhenContainerdRestartsWithManyPods 15 TestGPULostAndBack 15
TestReleaseIsNotMissed 15 TestRequiredPlugin 15 TestExclusiveProcessMode 14 TestDialectsShareOneLedger 13
TestKubeletAndPrometheusBesideAFlood 13 TestPools 13 TestClosedWhileTheGuardHangs 12
TestMPSUnderTheDriversRoot 12 TestTimeSlicingsExample 12 TestClosedWhileTheAgentHangs 11
TestKubectlVgpu 11 TestLeasesDelayNoOtherContainer 11 TestPodsDeletedWhileCreated 11
TestPodsChooseTheirMaximum 10 TestATenantDoesNotFillTheNodesRun 10 TestVolcanosWishes 10
TestClosedWithTheStateCorrupted 9 TestFilesThatAreTakenAwayAreDetected 9'

# tests_of PART: prints a pattern that matches the part's tests. tests_of assigns each
# test, the longest first, to the part with the shortest total duration.
tests_of() {
  "$logs/e2e.test" -test.list . | grep -vx "$alone" |
    awk -v slow="$slow" 'BEGIN { n = split(slow, s); for (i = 1; i < n; i += 2) takes[s[i]] = s[i + 1] }
      { print (($1 in takes) ? takes[$1] : 5), $1 }' | sort -k 1,1nr -k 2 |
    awk -v parts="$parts" -v wanted="$1" '{ least = 1
      for (i = 2; i <= parts; i++) if (sum[i] < sum[least]) least = i
      sum[least] += $1
      if (least == wanted) { printf "%s%s", separator, $2; separator = "|" } }'
}

# The script builds components before it starts nodes, because a concurrent build would
# wait for processors.
echo "e2e: building the components of nodes that the cache lacks"
build/bin/localcluster build
# This part runs while no other node runs, because it compares the machine before and after.
build test/cluster
run cluster test/cluster -test.run '^TestDownLeavesNothing$' &
echo "e2e: building the tests"
build test/chaos test/e2e test/e2e/nodestatus test/e2e/helm test/e2e/beside test/e2e/mig test/e2e/tutorial test/e2e/view test/volcano \
  test/scheduling
wait
# The longest parts start first. The tests of Helm also build other releases, which keeps both
# processors busy.
start helm test/e2e/helm -test.run '^TestHelm$'
start next test/e2e/helm -test.run '^TestNext$'
start volcano test/volcano
start scheduling test/scheduling
for ((part = 1; part <= parts; part++)); do
  start "pods-$part" test/e2e "-e2e.name=e2e$part" -test.run "^($(tests_of "$part"))\$"
done
# The tests that remove privileges wait long for events that do not occur. "make e2e-privileges"
# runs these tests.
start nodestatus test/e2e/nodestatus -test.skip '^TestEach(Right|Privilege)IsNeeded$'
start node test/cluster -test.skip '^TestDownLeavesNothing$'
start view test/e2e/view
start beside test/e2e/beside
start mig test/e2e/mig
start tutorial test/e2e/tutorial
wait
# Chaos compares the starts of containers beside hostile and beside harmless tenants. Other nodes
# would disturb the comparison, because their load varies.
run chaos test/chaos "-chaos.duration=$chaos" "-chaos.hostile=${HOSTILE:-2}"
run alone test/e2e "-e2e.name=e2e$((parts + 1))" -test.run "^$alone\$"

touch "$logs/failed"
mapfile -t once <"$logs/failed"
for name in "${once[@]}"; do
  if again "$name"; then
    echo "e2e: $name passed at its second attempt: $logs/$name.log contains the first attempt"
    sed -i "/^$name\$/d" "$logs/failed"
  fi
done

if [[ -s $logs/failed ]]; then
  echo "e2e: these parts failed:" >&2
  while read -r name; do
    echo "e2e: $name, $logs/$name.log:" >&2
    reasons "$name" >&2
  done <"$logs/failed"
  exit 1
fi
echo "e2e: all passed"

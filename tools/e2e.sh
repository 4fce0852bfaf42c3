#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end tests, several local nodes at a time: pods, kubelets and
# time-outs are waited for more than anything is computed. What each says comes
# with its name in front, and is kept in build/e2e.
#
# What fails beside other nodes is run once more with the machine to itself, and is
# said to have been: four nodes on two processors make each other wait. Chaos is not,
# if a container had more than it was given or was disturbed.
#
#   NODES     how many nodes at a time (4)
#   CHAOS     how long chaos lasts (3m)
set -euo pipefail
cd "$(dirname "$0")/.."

nodes=${NODES:-4}
chaos=${CHAOS:-3m}
# More parts than this and their nodes' coming up costs more than it saves.
parts=4
logs=build/e2e
rm -rf "$logs"
mkdir -p "$logs"

build() { # DIRECTORY: its test, built once
  "${GO:-go}" test -c -o "$PWD/$logs/${1//\//-}.test" "./$1"
}

# run NAME DIRECTORY ARGUMENT...: one test program, in its directory as go test does
run() {
  local name=$1 directory=$2
  shift 2
  if (cd "$directory" && "$OLDPWD/$logs/${directory//\//-}.test" -test.v -test.timeout 40m "$@" 2>&1) |
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

# again NAME: what of it failed, once more
again() {
  local name=$1 log=$logs/$1.log directory=test/e2e failed arguments=()
  case $name in
  pods-*) arguments=("-e2e.name=e2e${name#pods-}") ;;
  nodestatus) directory=test/e2e/nodestatus ;;
  chaos)
    if grep -qE ' BROKEN (over|unlimited|oversold|disturbed):' "$log"; then return 1; fi
    directory=test/chaos
    arguments=("-chaos.duration=$chaos")
    ;;
  *) directory=test/$name ;;
  esac
  failed=$(grep -oP '^--- FAIL: \K\w+' "$log" | sort -u | paste -sd '|') || return 1
  echo "e2e: once more, alone: $name, ${failed//|/ }"
  run "$name-again" "$directory" -test.run "^($failed)\$" "${arguments[@]}"
  ! grep -q "^$name-again\$" "$logs/failed"
}

echo "e2e: building the tests"
for directory in test/cluster test/chaos test/e2e test/e2e/nodestatus test/volcano; do build "$directory"; done

# Alone, as it compares the machine before and after; it builds what nodes need, too.
run cluster test/cluster
start chaos test/chaos "-chaos.duration=$chaos"
start volcano test/volcano # which takes the longest of the others
mapfile -t tests < <("$logs/test-e2e.test" -test.list .)
for ((part = 1; part <= parts; part++)); do
  pattern=$(printf '%s\n' "${tests[@]}" | awk -v n="$parts" -v i="$part" 'NR % n == i % n' | paste -sd '|')
  start "pods-$part" test/e2e "-e2e.name=e2e$part" -test.run "^($pattern)\$"
done
start nodestatus test/e2e/nodestatus
wait

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

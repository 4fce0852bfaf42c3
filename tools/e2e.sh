#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the end-to-end tests, several local nodes at a time: pods, kubelets and
# time-outs are waited for more than anything is computed. What each says comes
# with its name in front, and is kept in build/e2e.
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

if [[ -s $logs/failed ]]; then
  echo "e2e: these failed:" >&2
  while read -r name; do
    echo "e2e: $name, $logs/$name.log:" >&2
    grep -E '^ *--- FAIL|^FAIL|^panic' "$logs/$name.log" >&2 || tail -n 5 "$logs/$name.log" >&2
  done <"$logs/failed"
  exit 1
fi
echo "e2e: all passed"

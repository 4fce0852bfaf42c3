#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the style of all Go, C and shell in the repository; prints nothing
# but what it is doing and what is wrong.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in cppcheck shellcheck; do
  command -v "$tool" >/dev/null || {
    echo "lint: $tool is missing; on Debian: apt-get install cppcheck shellcheck" >&2
    exit 1
  }
done

# sources PATTERN: the repository's files with such names, also where it came without git's data.
sources() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files "$1"
  else
    find . -path ./build -prune -o -type f -name "$1" -print
  fi
}

golangci=build/tools/golangci-lint
if [[ ! -x $golangci || tools/golangci-lint/go.sum -nt $golangci ]]; then
  echo "lint: building golangci-lint (some minutes, the first time)"
  go build -C tools/golangci-lint -o "$PWD/$golangci" \
    github.com/golangci/golangci-lint/v2/cmd/golangci-lint
fi

echo "lint: gofmt"
unformatted=$(sources '*.go' | xargs gofmt -l)
if [[ -n $unformatted ]]; then
  printf 'lint: run gofmt -w on:\n%s\n' "$unformatted" >&2
  exit 1
fi

echo "lint: golangci-lint"
"$golangci" run ./...

for room in interposer interposer/fuzz gpusim test/workload cmd/vgpuctl/devices bench/overhead/calls; do
  echo "lint: cppcheck $room"
  make --no-print-directory -C "$room" BUILD="$PWD/build" lint
done

echo "lint: shellcheck"
{ sources '*.sh'; echo .ci/run; } | xargs shellcheck

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# This script checks the style of all sources and documents in the
# repository. The script prints only progress and problems.
#
#   lint.sh            every check
#   lint.sh CHECK...   only these: spdx, words, sentences, gofmt, golangci-lint, imports, align,
#                      clayers, cppcheck, shellcheck
set -euo pipefail
cd "$(dirname "$0")/.."

# need TOOL: fails with the command that installs the tool if the tool is missing.
need() {
  command -v "$1" >/dev/null || {
    echo "lint: $1 is missing; on Debian: apt-get install cppcheck shellcheck" >&2
    exit 1
  }
}

# sources PATTERN...: lists the repository's files with these names, even without git's data.
sources() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -- "$@"
  else
    local pattern
    for pattern; do
      find . -path ./build -prune -o -type f -name "${pattern##*/}" -print
    done
  fi
}

check_spdx() {
  local missing
  missing=$(sources '*.go' '*.c' '*.h' '*.S' '*.awk' '*.sh' '*Makefile' '*.mk' '.ci/run' | xargs awk '
    FNR == 1 { files[FILENAME] }
    /SPDX-License-Identifier: Apache-2.0/ { licensed[FILENAME] }
    FNR == 3 { nextfile }
    END { for (f in files) if (!(f in licensed)) print f }' | sort)
  if [[ -n $missing ]]; then
    printf 'lint: begin with a line "SPDX-License-Identifier: Apache-2.0":\n%s\n' "$missing" >&2
    return 1
  fi
}

# check_words: fails if a file uses one of the verbs below, instead of a precise verb
# for code (returns, reports, contains, allocates).
check_words() {
  local banned
  # The brackets keep the pattern from matching this line.
  if banned=$(sources '*.go' '*.c' '*.h' '*.S' '*.md' '*.sh' '*.yaml' '*.yml' '*.toml' '*.conf' '*.awk' '*Makefile' '*.mk' |
    xargs grep -nwiE '[g]ives|[s]ays|[t]ells'); then
    printf 'lint: use a precise verb:\n%s\n' "$banned" >&2
    return 1
  fi
}

# check_sentences: fails if a comment or a document contains a sentence of 25 words or more.
check_sentences() {
  sources '*.go' '*.c' '*.h' '*.S' '*.inc' '*.md' '*.sh' '*.py' '*.yaml' '*.yml' '*.toml' '*.conf' '*.awk' '*.tpl' \
    '*Makefile' '*.mk' '*.txt' '.ci/run' | xargs go run ./tools/sentences
}

check_gofmt() {
  local unformatted
  unformatted=$(sources '*.go' | xargs gofmt -l)
  if [[ -n $unformatted ]]; then
    printf 'lint: run gofmt -w on:\n%s\n' "$unformatted" >&2
    return 1
  fi
}

check_golangci-lint() {
  local program=build/tools/golangci-lint
  if [[ ! -x $program || tools/golangci-lint/go.sum -nt $program ]]; then
    echo "lint: building golangci-lint (some minutes, the first time)"
    go build -C tools/golangci-lint -o "$PWD/$program" \
      github.com/golangci/golangci-lint/v2/cmd/golangci-lint
  fi
  "$program" run ./...
  (cd scheduler && "$OLDPWD/$program" run --config ../.golangci.yml ./...)
}

check_imports() {
  go run ./tools/imports
}

check_align() {
  go run ./tools/align
}

check_clayers() {
  go run ./tools/clayers interposer/src/layers.txt gpusim/layers.txt
}

check_cppcheck() {
  need cppcheck
  need shellcheck # the Makefiles check their scripts with shellcheck
  local room
  for room in include interposer interposer/fuzz gpusim test/workload cmd/vgpuctl/devices bench/overhead/calls; do
    echo "lint: cppcheck $room"
    make --no-print-directory -C "$room" BUILD="$PWD/build" lint
  done
}

check_shellcheck() {
  need shellcheck
  sources '*.sh' '.ci/run' | xargs shellcheck
}

checks=("$@")
if ((${#checks[@]} == 0)); then
  need cppcheck
  need shellcheck
  checks=(spdx words sentences gofmt golangci-lint imports align clayers cppcheck shellcheck)
fi
for check in "${checks[@]}"; do
  declare -F "check_$check" >/dev/null || { echo "lint: there is no check $check" >&2; exit 2; }
  echo "lint: $check"
  "check_$check"
done

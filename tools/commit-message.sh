#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# This script checks that the subject of a commit message is "area: what changes", in at
# most 72 characters. An empty line must follow the subject. Git runs the script with a
# message in a file (the hook commit-msg). CI runs the script with a range of commits.
#
#   commit-message.sh FILE            a message
#   commit-message.sh --range A..B    the messages of commits; merges are skipped
set -euo pipefail
export LC_ALL=C.UTF-8 # count characters, not bytes

# check NAME: fails if the message of NAME, on standard input, breaks the convention.
check() {
  local name=$1 subject='' second='' problem=''
  # Git drops comments and leading empty lines.
  { read -r subject && read -r second; } < <(sed '/^#/d' | sed '/[^[:space:]]/,$!d') || true
  case $subject in
  'Merge '* | 'Revert "'* | 'fixup! '* | 'squash! '* | 'amend! '*) return 0 ;;
  esac
  if [[ ! $subject =~ ^[a-z0-9][a-z0-9._/-]*:\ [^[:space:]] ]]; then
    problem='begin with one area, as in "hook: refuse long paths"'
  elif ((${#subject} > 72)); then
    problem="be 72 characters at most; it has ${#subject}"
  elif [[ $subject == *. ]]; then
    problem='not end in a full stop'
  elif [[ -n $second ]]; then
    problem='be followed by an empty line'
  else
    return 0
  fi
  printf 'commit-message: the subject of %s must %s: %s\n' "$name" "$problem" "$subject" >&2
  return 1
}

case ${1-} in
--range)
  failed=0
  commits=$(git rev-list --no-merges "${2:?a range is missing}")
  for commit in $commits; do
    git log -1 --format=%B "$commit" | check "${commit:0:12}" || failed=1
  done
  exit $failed
  ;;
'' | -*)
  sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
*) check "the commit" <"$1" ;;
esac

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# This script makes a release of the last commit in two clones at paths of different lengths, and
# compares the checksums of all files. Each clone has a separate Go build cache, so that no clone
# uses the compiled packages of the other clone. The caches need some 6 GB.
#
#   release-twice.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."

version=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for clone in first a/much/longer/path/to/the/second; do
  git clone --quiet . "$scratch/$clone"
  GOCACHE=$scratch/$clone.cache make --no-print-directory -C "$scratch/$clone" release VERSION="$version"
done
if ! diff "$scratch"/{first,a/much/longer/path/to/the/second}/build/release/"$version"/SHA256SUMS; then
  echo "release-twice: compare releases of two clones: the files above differ: look for paths in them by strings" >&2
  exit 1
fi
echo "release-twice: $(wc -l <"$scratch/first/build/release/$version/SHA256SUMS") files are equal"

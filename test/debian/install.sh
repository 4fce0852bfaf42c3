#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# This script installs missing Debian packages that a test needs. If no package is missing, the
# script is quick and silent.
#
#   install.sh TEST WHAT PACKAGE...
set -eu

test=$1
what=$2
shift 2
packages=$*

lacking() {
	for package in $packages; do
		state=$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null || true)
		[ "$state" = installed ] || printf '%s ' "$package"
	done
}

give_up() {
	echo "$test: $1; install these packages of Debian 12 and run the tests again: $missing" >&2
	exit 1
}

missing=$packages
for tool in apt-get dpkg-query; do
	command -v "$tool" >/dev/null || give_up "this is no Debian"
done
missing=$(lacking)
[ -n "$missing" ] || exit 0
[ "$(id -u)" = 0 ] || give_up "packages are missing, and installing them needs root"

echo "$test: installing $what, once: $missing" >&2
export DEBIAN_FRONTEND=noninteractive
install() {
	# shellcheck disable=SC2086 # several words
	apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 $missing >&2
}
# The lists of packages may be missing or old.
install || {
	echo "$test: reading Debian's lists of packages first" >&2
	apt-get update >&2 && install
} || give_up "apt-get could not install all packages (apt-get's errors stand above)"
missing=$(lacking)
[ -z "$missing" ] || give_up "apt-get installed other packages than these"

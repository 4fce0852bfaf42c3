#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# This script runs a command on a machine whose kernel also runs programs for arm64, by QEMU.
#
#   arm64.sh COMMAND...
#
# The C library for arm64 belongs to Debian's cross compiler. If the kernel does not run programs for
# arm64 yet, the script makes a user namespace with a separate table of interpreters. The namespace
# needs Linux 6.7. Nothing outside the namespace changes.
set -euo pipefail

readonly sysroot=/usr/aarch64-linux-gnu
readonly packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"

if [[ ! -d $sysroot ]] || ! command -v aarch64-linux-gnu-gcc >/dev/null; then
  echo "arm64: run programs for arm64: the cross compiler is missing: apt-get install $packages" >&2
  exit 1
fi
export QEMU_LD_PREFIX=$sysroot

# runs: reports whether the kernel runs programs for arm64.
runs() {
  "$sysroot/lib/ld-linux-aarch64.so.1" --version >/dev/null 2>&1
}

if [[ $(uname -m) == aarch64 ]] || runs; then
  exec "$@"
fi
if [[ ${ARM64_NAMESPACE:-} ]]; then
  # An entry of the table has the first bytes of a program for arm64, and a mask for them.
  magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
  echo ":arm64:M::$magic:$mask:$(command -v qemu-aarch64-static):" >/proc/sys/fs/binfmt_misc/register
  if ! runs; then
    echo "arm64: run programs for arm64 by QEMU: the kernel refuses: register qemu-aarch64-static with binfmt_misc" >&2
    exit 1
  fi
  exec "$@"
fi
if ! command -v qemu-aarch64-static >/dev/null; then
  echo "arm64: run programs for arm64: QEMU is missing: apt-get install $packages" >&2
  exit 1
fi
ARM64_NAMESPACE=1 exec unshare --user --map-root-user --mount "$0" "$@"

#!/usr/bin/env bash
# Runs this project's scripts on a machine that has neither Node nor a network:
#
#     bash .gpu/run.sh test:gpu                 as npm run test:gpu
#     bash .gpu/run.sh test:gpu -- stream       as npm run test:gpu -- stream
#     bash .gpu/run.sh exec node --version      any command, with node, npm, tsc and tsx in PATH
#
# The first run unpacks the tools beside this file into a cache folder; CUFFI_GPU_CACHE names
# another one. Where the tree has no node_modules, it becomes a link to the unpacked one.
set -euo pipefail

checksum=@CHECKSUM@
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
archive=$here/tools.tar.xz
tree=$(dirname "$here")

fail() {
  echo ".gpu/run.sh: $*" >&2
  exit 1
}

[ $# -gt 0 ] || fail 'which script? (bash .gpu/run.sh test:gpu, bash .gpu/run.sh exec node ...)'

cache=${CUFFI_GPU_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp/cuffi-$(id -u)}/.cache}/cuffi-gpu}
tools=$cache/$checksum

unpack() {
  if command -v sha256sum >/dev/null; then
    echo "$checksum  $archive" | sha256sum --check --status || fail "$archive is damaged"
  fi
  mkdir -p "$cache"
  local fresh
  fresh=$(mktemp -d "$cache/unpacking.XXXXXX")
  trap 'rm -rf "$fresh"' EXIT
  if command -v xz >/dev/null && command -v tar >/dev/null; then
    tar -xJf "$archive" -C "$fresh" --no-same-owner
  elif command -v python3 >/dev/null; then
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
      "$archive" "$fresh"
  else
    fail 'unpacking takes tar and xz, or python3'
  fi
  "$fresh/bin/node" --version >/dev/null || fail 'the packed node does not start here'
  # Whoever comes second throws its own copy away.
  mv -T "$fresh" "$tools" 2>/dev/null || [ -d "$tools" ] || fail "cannot write $tools"
  rm -rf "$fresh"
  trap - EXIT
}

[ -d "$tools" ] || unpack

# A link may point to the tools of an earlier archive; a folder is the user's.
if [ -L "$tree/node_modules" ] || [ ! -e "$tree/node_modules" ]; then
  ln -sfn "$tools/node_modules" "$tree/node_modules"
fi

export PATH=$tools/bin:$tools/node_modules/.bin:$PATH
cd "$tree"
if [ "$1" = exec ]; then
  shift
  exec "$@"
fi
exec npm run "$@"

#!/usr/bin/env bash
# As much of npm as this project's scripts use: npm run NAME [--silent] [-- ARGS], npm test,
# npm start, in the folder of package.json.
set -euo pipefail

fail() {
  echo "npm (of .gpu): $*" >&2
  exit 1
}

silent=
name=
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; break ;;
    -s | --silent) silent=1 ;;
    -*) fail "option $1 is not known here" ;;
    run | run-script) [ -z "$name" ] || break ;;
    test | start) [ -n "$name" ] && break || name=$1 ;;
    *) [ -n "$name" ] && break || name=$1 ;;
  esac
  shift
done
[ -n "$name" ] || fail 'only npm run NAME, npm test and npm start are known here'

script=$(node -p 'require("./package.json").scripts[process.argv[1]] ?? ""' "$name")
[ -n "$script" ] || fail "package.json has no script $name"
[ -n "$silent" ] || printf '\n> %s\n> %s\n\n' "$name" "$script"

export npm_lifecycle_event=$name
exec sh -c "$script \"\$@\"" "$name" "$@"

#!/usr/bin/env bash
# Stands in for the node that a test file runs in. Node runs in a process group of its own; the
# whole group is killed when node has ended, after CUFFI_TEST_SECONDS, when this script is told to
# end, and when the runner, which holds the other end of stdin, is gone.
#
# The mutation run names a folder in CUFFI_TEST_RECORD. In it, each test file leaves how it ended, from
# when to when it ran and, if CUFFI_TEST_COVERAGE is set, which code it ran. A file `limit` there has the
# seconds after which a test file is killed.
set -m
exec 3<&0 </dev/null

record=
if [ -n "$CUFFI_TEST_RECORD" ] && [ -f "${*: -1}" ]; then
  file=${*: -1}
  record=$CUFFI_TEST_RECORD/${file#*.out/test-*/}
  mkdir -p "$record"
  [ ! -f "$record/limit" ] || CUFFI_TEST_SECONDS=$(<"$record/limit")
  [ -z "$CUFFI_TEST_COVERAGE" ] || export NODE_V8_COVERAGE="$record" CUFFI_PYTHON_COVERAGE="$record"
  # Tests of the runner start others.
  unset CUFFI_TEST_RECORD
  begin=$EPOCHREALTIME
fi

"$CUFFI_TEST_NODE" "$@" 3<&- &
node=$!
end() { kill -KILL -- "-$node"; } 2>/dev/null

trap 'end; exit 143' INT TERM HUP
{
  read -r -t "$CUFFI_TEST_SECONDS" -u 3
  # Above 128: the time is over. Otherwise the other end is closed.
  [ $? -gt 128 ] && echo "killed, as it took longer than $CUFFI_TEST_SECONDS s: ${*: -1}" >&2
  end
} >/dev/null &
watch=$!

wait "$node" 2>/dev/null
status=$?
[ -z "$record" ] || echo "$status $begin $EPOCHREALTIME" >"$record/ended"
exec 2>/dev/null
end
kill -KILL -- "-$watch"
exit "$status"

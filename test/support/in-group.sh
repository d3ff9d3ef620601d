#!/usr/bin/env bash
# Stands in for the node that a test file runs in. Node runs in a process group of its own; the
# whole group is killed when node has ended, after CUFFI_TEST_SECONDS, when this script is told to
# end, and when the runner, which holds the other end of stdin, is gone.
set -m
exec 3<&0 </dev/null

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
exec 2>/dev/null
end
kill -KILL -- "-$watch"
exit "$status"

"""Writes which functions of the companion a process runs, each once, as `file:first line`.

Each is written as soon as it runs: tests kill many of these processes.
"""

import os
import sys
import threading

folder = os.environ.get("CUFFI_PYTHON_COVERAGE")
package = os.sep + os.path.join("src", "python", "cuffi") + os.sep
seen = set()


def trace(frame, event, argument):
    code = frame.f_code
    if code in seen:
        return
    seen.add(code)
    if package not in code.co_filename:
        return
    line = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}\n"
    # Opened for each: tests count the descriptors of a process.
    fd = os.open(os.path.join(folder, "python"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


if folder:
    threading.settrace(trace)
    sys.settrace(trace)

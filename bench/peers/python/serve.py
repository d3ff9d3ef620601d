"""What the programs in Python have in common: how they are asked, and how they measure.

A program says "ready UUID" (or "skip REASON"), then answers each line "BATCH CALLS BYTES" of its
standard input with "ns NANOSECONDS" (or "error WHAT"); 0 calls ask whether there is such a batch,
which is answered with "ns 0" or "skip REASON".
"""

import ctypes
import gc
import sys
from time import perf_counter_ns


def say(word, text):
    print(word, str(text).replace("\n", " "), flush=True)


def device_uuid():
    """Device 0's, from the driver itself: each package spells it in its own way."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, uuid = ctypes.c_int(), ctypes.create_string_buffer(16)
    calls = [
        ("cuInit", (0,)),
        ("cuDeviceGet", (ctypes.byref(device), 0)),
        ("cuDeviceGetUuid_v2", (uuid, device)),
    ]
    for name, arguments in calls:
        status = getattr(driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} answered {status}")
    return uuid.raw.hex()


def measure(loop, settle, calls):
    # Untimed, as after another contestant's turn the first calls are slower.
    loop(calls // 10)
    settle()
    start = perf_counter_ns()
    loop(calls)
    end = perf_counter_ns()
    settle()
    return end - start


def answer(batches, opened, line):
    name, calls, byte_length = line.split()
    open_batch = batches.get(name)
    if open_batch is None:
        say("skip", "it has no such batch")
        return
    if int(calls) == 0:
        say("ns", 0)
        return
    if opened.get(name, (None,))[0] != byte_length:
        # The last size's memory goes before the next one's comes.
        opened.pop(name, None)
        opened[name] = (byte_length, *open_batch(int(byte_length)))
    _, loop, settle = opened[name]
    say("ns", measure(loop, settle, int(calls)))


def serve(package, start):
    """Runs a program; `start` answers with its batches: each takes a number of bytes, and answers
    with a loop of calls and with what waits for them."""
    try:
        batches = start()
    except ImportError as error:
        say("skip", f"{package} cannot be imported: {error}")
        return
    try:
        # As timeit does: the collector's turns are not the calls'.
        gc.disable()
        say("ready", device_uuid())
        opened = {}
        for line in sys.stdin:
            answer(batches, opened, line)
    except Exception as error:
        say("error", f"{type(error).__name__}: {error}")
        sys.exit(1)

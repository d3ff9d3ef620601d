"""What the programs in Python have in common: how they are asked, and how they measure.

A program says "ready UUID" (or "skip REASON"), then answers each line "BATCH CALLS BYTES UNTIMED" of
its standard input with "ns NANOSECONDS" (or "error WHAT"), after as many calls that are not timed; 0
calls ask whether the batch can be made here, which is answered with "ns ANYTHING" or "skip REASON".
"verify" in place of CALLS has it look whether what the calls did is right, which is answered with "ns
ANYTHING" (or "error WHAT").
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


def measure(loop, settle, calls, untimed):
    # After another contestant's turn the first calls are slower.
    loop(untimed)
    settle()
    start = perf_counter_ns()
    taken = loop(calls)
    end = perf_counter_ns()
    settle()
    # Where not all of a call is timed, the loop says what was.
    return end - start if taken is None else taken


def open_batch(batches, opened, name, byte_length):
    if opened.get(name, (None,))[0] != byte_length:
        # The last size's memory goes before the next one's comes.
        opened.pop(name, None)
        opened[name] = (byte_length, *batches[name](byte_length))
    return opened[name][1:]


def try_batch(batches, opened, name, byte_length):
    if name not in batches:
        say("skip", "it has no such batch")
        return
    try:
        loop, settle, *_ = open_batch(batches, opened, name, byte_length)
        loop(1)
        settle()
        say("ns", 0)
    except Exception as error:
        say("skip", f"{type(error).__name__}: {error}")


def answer(batches, opened, line):
    name, calls, byte_length, untimed = line.split()
    if calls == "0":
        try_batch(batches, opened, name, int(byte_length))
        return
    loop, settle, *verify = open_batch(batches, opened, name, int(byte_length))
    if calls == "verify":
        for look in verify:
            look()
        say("ns", 0)
        return
    say("ns", measure(loop, settle, int(calls), int(untimed)))


def serve(package, start):
    """Runs a program; `start` answers with its batches: each takes a number of bytes, and answers
    with a loop of calls, with what waits for them, and maybe with what raises where they did something
    wrong."""
    try:
        batches = start()
    except Exception as error:
        say("skip", f"{package} cannot be used: {error}")
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

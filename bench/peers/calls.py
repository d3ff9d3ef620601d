"""The driver calls that the bench measures, through cuda.bindings.

Says "ready UUID" (or "skip REASON"), then answers each line "CASE CALLS" of its standard input
with "ns NANOSECONDS" (or "error WHAT").
"""

import gc
import sys
from itertools import repeat
from time import perf_counter_ns

CU_STREAM_NON_BLOCKING = 1
CU_EVENT_DISABLE_TIMING = 2
BUFFER_BYTES = 4 << 20


def say(word, text):
    print(word, text, flush=True)


def check(answer, call):
    """What a call gave beside its status."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"{call} answered {int(status)}")
    return values[0] if values else None


# Each makes the calls with names that are local, Python's fastest way, and looks at the last status.
def stream_done(driver, objects, calls):
    query, stream = driver.cuStreamQuery, objects["stream"]
    answer = (0,)
    for _ in repeat(None, calls):
        answer = query(stream)
    check(answer, "cuStreamQuery")


def event_record(driver, objects, calls):
    record, event, stream = driver.cuEventRecord, objects["event"], objects["stream"]
    answer = (0,)
    for _ in repeat(None, calls):
        answer = record(event, stream)
    check(answer, "cuEventRecord")


def get_ipc_handle(driver, objects, calls):
    get, buffer = driver.cuIpcGetMemHandle, objects["buffer"]
    answer = (0,)
    for _ in repeat(None, calls):
        answer = get(buffer)
    check(answer, "cuIpcGetMemHandle")


CASES = {
    "stream.done": stream_done,
    "event.record": event_record,
    "getIpcHandle": get_ipc_handle,
}


def measure(driver, objects, loop, calls):
    stream = objects["stream"]
    # Untimed, as after another contestant's turn the first calls are slower.
    loop(driver, objects, (calls + 9) // 10)
    check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize")
    start = perf_counter_ns()
    loop(driver, objects, calls)
    end = perf_counter_ns()
    check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize")
    return end - start


def serve(driver, objects):
    for line in sys.stdin:
        name, _, calls = line.strip().partition(" ")
        loop = CASES.get(name)
        if loop is None or not calls.isdigit():
            say("error", "a line is CASE CALLS")
        else:
            say("ns", measure(driver, objects, loop, int(calls)))


def main():
    try:
        from cuda.bindings import driver
    except ImportError as error:
        say("skip", f"cuda.bindings cannot be imported: {error}")
        return
    # As timeit does: the collector's turns are not the calls'.
    gc.disable()
    check(driver.cuInit(0), "cuInit")
    device = check(driver.cuDeviceGet(0), "cuDeviceGet")
    get_uuid = getattr(driver, "cuDeviceGetUuid_v2", driver.cuDeviceGetUuid)
    uuid = check(get_uuid(device), "cuDeviceGetUuid")
    context = check(driver.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")
    check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent")
    objects = {
        "stream": check(driver.cuStreamCreate(CU_STREAM_NON_BLOCKING), "cuStreamCreate"),
        "event": check(driver.cuEventCreate(CU_EVENT_DISABLE_TIMING), "cuEventCreate"),
        "buffer": check(driver.cuMemAlloc(BUFFER_BYTES), "cuMemAlloc"),
    }
    say("ready", bytes(uuid.bytes).hex())
    serve(driver, objects)
    check(driver.cuMemFree(objects["buffer"]), "cuMemFree")
    check(driver.cuEventDestroy(objects["event"]), "cuEventDestroy")
    check(driver.cuStreamDestroy(objects["stream"]), "cuStreamDestroy")
    check(driver.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease")


try:
    main()
except Exception as error:
    say("error", f"{type(error).__name__}: {error}".replace("\n", " "))
    sys.exit(1)

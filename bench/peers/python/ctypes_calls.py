"""The driver calls that the bench measures, through ctypes: Python's own way, without a package.

On the kinds of objects that the others use: a non-blocking stream, an event without timing, 4 MiB
of cuMemAlloc memory.
"""

import ctypes
from itertools import repeat

from serve import serve

CU_STREAM_NON_BLOCKING = 1
CU_EVENT_DISABLE_TIMING = 2
BUFFER_BYTES = 4 << 20
HANDLE_BYTES = 64


def start():
    driver = ctypes.CDLL("libcuda.so.1")

    def check(status, call):
        if status != 0:
            raise RuntimeError(f"{call} answered {status}")

    def make(call, *arguments):
        """What a call writes to its first parameter."""
        made = ctypes.c_void_p()
        check(getattr(driver, call)(ctypes.byref(made), *arguments), call)
        return made

    check(driver.cuInit(0), "cuInit")
    device = ctypes.c_int()
    check(driver.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    context = make("cuDevicePrimaryCtxRetain", device)
    check(driver.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent_v2")
    stream = make("cuStreamCreate", CU_STREAM_NON_BLOCKING)
    event = make("cuEventCreate", CU_EVENT_DISABLE_TIMING)
    buffer = make("cuMemAlloc_v2", ctypes.c_size_t(BUFFER_BYTES))
    handle = ctypes.create_string_buffer(HANDLE_BYTES)

    def settle():
        check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize")

    # Each makes the calls with names that are local, Python's fastest way, and looks at the last
    # status.
    def calling(call, *arguments):
        def loop(calls, function=getattr(driver, call)):
            status = 0
            for _ in repeat(None, calls):
                status = function(*arguments)
            check(status, call)

        return lambda _: (loop, settle)

    return {
        "stream.done": calling("cuStreamQuery", stream),
        "event.record": calling("cuEventRecord", event, stream),
        "getIpcHandle": calling("cuIpcGetMemHandle", handle, buffer),
    }


serve("ctypes", start)

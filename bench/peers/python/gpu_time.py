"""GPU time: what a stream takes by the GPU's own clock, between two events of the driver."""

import ctypes

CU_EVENT_DEFAULT = 0
CU_MEMHOSTALLOC_DEVICEMAP = 2
CU_STREAM_WAIT_VALUE_GEQ = 0
WORD_BYTES = 8


class GpuTimer:
    """Times what is queued in a stream, named by the driver's handle. A gate before it opens when all of
    it is there, so that it is the GPU's work alone. The primary context must be current."""

    def __init__(self, stream):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.stream = ctypes.c_void_p(stream)
        self.begin, self.end = self.make_event(), self.make_event()
        page, address = ctypes.c_void_p(), ctypes.c_uint64()
        flags = CU_MEMHOSTALLOC_DEVICEMAP
        self.call("cuMemHostAlloc", ctypes.byref(page), ctypes.c_size_t(WORD_BYTES), flags)
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(address), page, 0)
        self.address = address
        self.word = ctypes.c_uint64.from_address(page.value)
        self.word.value = 0
        self.opened = 0

    def call(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} answered {status}")

    def make_event(self):
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), CU_EVENT_DEFAULT)
        return event

    def settle(self):
        self.call("cuStreamSynchronize", self.stream)

    def loop(self, queue):
        """A loop of calls that `queue` puts in the stream and waits for none of."""

        def loop(calls):
            # At least one: what is loaded at its first use would wait for the gate.
            queue(1)
            self.settle()
            if calls == 0:
                return 0
            self.opened += 1
            self.call(
                "cuStreamWaitValue64_v2",
                self.stream,
                self.address,
                ctypes.c_uint64(self.opened),
                CU_STREAM_WAIT_VALUE_GEQ,
            )
            try:
                self.call("cuEventRecord", self.begin, self.stream)
                queue(calls)
                self.call("cuEventRecord", self.end, self.stream)
            finally:
                self.word.value = self.opened
            self.settle()
            milliseconds = ctypes.c_float()
            self.call("cuEventElapsedTime", ctypes.byref(milliseconds), self.begin, self.end)
            return int(milliseconds.value * 1e6)

        return loop

"""Allocating from CuPy's two pools and giving back: its own cache, and the driver's pools; and what
its arrays cost."""

from itertools import repeat

from arrays import array_batches
from serve import serve


def start():
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)

    def allocating(make_pool):
        def open_pool(byte_length):
            pool = make_pool()

            def loop(calls, allocate=pool.malloc):
                with stream:
                    for _ in repeat(None, calls):
                        # The name's next value frees the last one.
                        memory = allocate(byte_length)
                        del memory

            return loop, stream.synchronize

        return open_pool

    def to_host(array):
        return array.get

    return {
        "pool.allocate": allocating(cupy.cuda.MemoryPool),
        "pool.async.allocate": allocating(cupy.cuda.MemoryAsyncPool),
        **array_batches(cupy.asarray, to_host, cupy.cuda.runtime.deviceSynchronize),
    }


serve("cupy", start)

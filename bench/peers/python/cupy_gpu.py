"""CuPy's copies of rows with gaps, and a kernel of PTX, by the GPU's clock."""

from itertools import repeat
from pathlib import Path

from gpu_time import GpuTimer

PTX = str(Path(__file__).parent.parent / "saxpy.ptx")
# Of a row, what is copied and what is not.
WIDTH = 256
STRIDE = 512
# x is read, y is read and written: the bytes of a batch are all three.
VECTORS_MOVED = 3
FACTOR = 2.5
# What x holds, again and again: integers, of which all that is computed is exact.
PERIOD = 1024
BLOCK = 256


def gpu_batches(cupy, stream):
    def timing(queue, prepare, require):
        """`prepare` clears what is written, `require` raises where it holds anything but it should."""
        # Made here, as the context is current from the first array on.
        clock = GpuTimer(stream.ptr)
        cupy.cuda.runtime.deviceSynchronize()

        def queue_in_stream(calls):
            with stream:
                for _ in repeat(None, calls):
                    queue()

        def verify():
            prepare()
            cupy.cuda.runtime.deviceSynchronize()
            queue_in_stream(1)
            clock.settle()
            if not require():
                raise RuntimeError("other values than were sent")

        return clock.loop(queue_in_stream), clock.settle, verify

    def rows(byte_length):
        count = byte_length // WIDTH
        whole = cupy.zeros((count, STRIDE), dtype=cupy.uint8)
        source = whole[:, :WIDTH]
        target = cupy.zeros((count, WIDTH), dtype=cupy.uint8)
        expected = (cupy.arange(byte_length, dtype=cupy.uint32) % 251).astype(cupy.uint8)
        source[...] = expected.reshape(target.shape)

        def copy():
            target[...] = source

        def require():
            return bool((target.ravel() == expected).all())

        return timing(copy, lambda: target.fill(0), require)

    def saxpy(byte_length):
        count = byte_length // VECTORS_MOVED // 4
        kernel = cupy.RawModule(path=PTX).get_function("saxpy")
        x = (cupy.arange(count, dtype=cupy.uint32) % PERIOD).astype(cupy.float32)
        y = cupy.zeros_like(x)
        grid = ((count + BLOCK - 1) // BLOCK,)
        arguments = (cupy.float32(FACTOR), x, y, cupy.uint32(count))

        def require():
            return bool((y == FACTOR * x).all())

        return timing(lambda: kernel(grid, (BLOCK,), arguments), lambda: y.fill(0), require)

    return {"gpu.rows": rows, "gpu.saxpy": saxpy}

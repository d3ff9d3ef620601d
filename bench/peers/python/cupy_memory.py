"""Allocating from CuPy's two pools and giving back: its own cache, and the driver's pools; what its
arrays cost; launches; single calls; and what the GPU takes for some of it."""

from itertools import repeat

from arrays import array_batches
from cupy_gpu import gpu_batches
from gpu_time import GpuTimer
from idle_kernels import ASKED, PTX, kernel_arguments, require_written
from serve import serve

GRAPH_KERNELS = 100
BUFFER_BYTES = 4 << 20


def launch_batches(cupy, stream):
    module = cupy.RawModule(path=str(PTX))
    array = cupy.zeros(16, dtype=cupy.float32)
    arguments = kernel_arguments(cupy, array)
    asked = kernel_arguments(cupy, array, ASKED)

    def verify(name, launch):
        array.fill(0)
        cupy.cuda.runtime.deviceSynchronize()
        launch()
        stream.synchronize()
        require_written(name, array.data.ptr, array.get().tobytes())

    def launching(name):
        kernel, values = module.get_function(name), arguments[name]

        def loop(calls):
            with stream:
                for _ in repeat(None, calls):
                    kernel((1,), (32,), values)

        def ask():
            with stream:
                kernel((1,), (32,), asked[name])

        return loop, stream.synchronize, lambda: verify(name, ask)

    def launching_graph(_):
        kernel, values = module.get_function("four"), arguments["four"]
        with stream:
            stream.begin_capture()
            for _ in repeat(None, GRAPH_KERNELS - 1):
                kernel((1,), (32,), values)
            # The last one writes its arguments down.
            kernel((1,), (32,), asked["four"])
            graph = stream.end_capture()

        # Each call is one kernel.
        def loop(calls):
            for _ in repeat(None, max(1, calls // GRAPH_KERNELS)):
                graph.launch(stream)

        return loop, stream.synchronize, lambda: verify("four", lambda: graph.launch(stream))

    def running_graph(byte_length):
        loop, *rest = launching_graph(byte_length)
        return GpuTimer(stream.ptr).loop(loop), *rest

    batches = {f"launch.{name}": lambda _, name=name: launching(name) for name in arguments}
    return {**batches, "graph.launch": launching_graph, "gpu.graph": running_graph}


def call_batches(cupy, stream):
    event = cupy.cuda.Event(disable_timing=True)
    # Of the driver's own, not of a pool.
    memory = cupy.cuda.memory.Memory(BUFFER_BYTES)

    def stream_done(calls):
        done = True
        for _ in repeat(None, calls):
            done = stream.done
        if not done:
            raise RuntimeError("the stream has work")

    def event_record(calls, record=event.record):
        for _ in repeat(None, calls):
            record(stream)

    def get_ipc_handle(calls, get=cupy.cuda.runtime.ipcGetMemHandle, address=memory.ptr):
        for _ in repeat(None, calls):
            get(address)

    loops = {
        "stream.done": stream_done,
        "event.record": event_record,
        "getIpcHandle": get_ipc_handle,
    }
    # It holds the memory, whose address the loop is given.
    return {
        name: lambda _, loop=loop, memory=memory: (loop, stream.synchronize)
        for name, loop in loops.items()
    }


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

            def verify():
                memory = pool.malloc(byte_length)
                bytes_ = cupy.ndarray((byte_length,), dtype=cupy.uint8, memptr=memory)
                bytes_[...] = cupy.arange(byte_length) % 251
                expected = cupy.arange(byte_length).get() % 251
                if not (bytes_.get() == expected).all():
                    raise RuntimeError("what was written is not there")

            return loop, stream.synchronize, verify

        return open_pool

    def to_host(array):
        return array.get

    return {
        "pool.allocate": allocating(cupy.cuda.MemoryPool),
        "pool.async.allocate": allocating(cupy.cuda.MemoryAsyncPool),
        **call_batches(cupy, stream),
        **launch_batches(cupy, stream),
        **gpu_batches(cupy, stream),
        **array_batches(cupy.asarray, to_host, cupy.cuda.runtime.deviceSynchronize),
    }


serve("cupy", start)

"""The hand-over of cuda.core: a Buffer through a queue of multiprocessing; and its launches."""

import multiprocessing
import pickle

from cuda_core_launches import launch_batches
from hand_over import Other, rounds
from serve import serve

# What a pool is rounded up to.
LEAST_POOL_BYTES = 64 << 20
WORD_BYTES = 4


def check(answer, call):
    """What a call gave beside its status."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"{call} answered {int(status)}")
    return values[0] if values else None


def answer(requests, answers):
    """What the other process does. It knows the pools that it was sent: a buffer of one comes as
    pickled bytes, and finds it."""
    import numpy
    from cuda.bindings import driver
    from cuda.core import Device

    device = Device(0)
    device.set_current()
    host = numpy.zeros(1, dtype=numpy.uint32)
    kept = None
    pools = []

    def give_back(buffer):
        # Its memory goes in the order of a stream: as the others do, it answers when that is done.
        buffer.close()
        device.sync()

    def read(buffer):
        copied = driver.cuMemcpyDtoH(host.ctypes.data, int(buffer.handle), WORD_BYTES)
        check(copied, "cuMemcpyDtoH")
        return int(host[0])

    while True:
        kind, thing = requests.get()
        word = 0
        if kind == "know":
            pools.append(thing)
        elif kind == "keep":
            kept = pickle.loads(thing)
            word = read(kept)
        elif kind == "mapped":
            word = read(pickle.loads(thing))
        elif kind == "pool":
            buffer = pickle.loads(thing)
            word = read(buffer)
            give_back(buffer)
        elif kind == "firstPool":
            word = read(thing)
            pool = thing.memory_resource
            give_back(thing)
            pool.close()
            del pool
        del thing
        answers.put(word)


def start():
    import numpy
    from cuda.bindings import driver
    from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions

    device = Device(0)
    device.set_current()
    other = Other(multiprocessing.get_context("spawn"), answer)
    host = numpy.zeros(1, dtype=numpy.uint32)

    def make_pool(byte_length):
        options = DeviceMemoryResourceOptions(
            max_size=max(LEAST_POOL_BYTES, 2 * byte_length), ipc_enabled=True
        )
        return DeviceMemoryResource(device, options=options)

    def write(buffer, word):
        host[0] = word
        copied = driver.cuMemcpyHtoD(int(buffer.handle), host.ctypes.data, WORD_BYTES)
        check(copied, "cuMemcpyHtoD")
        device.sync()

    def read(buffer, byte_length):
        seen = numpy.zeros(byte_length, dtype=numpy.uint8)
        copied = driver.cuMemcpyDtoH(seen.ctypes.data, int(buffer.handle), byte_length)
        check(copied, "cuMemcpyDtoH")
        return seen.tobytes()

    def allocate(pool, byte_length, word):
        buffer = pool.allocate(byte_length, stream=device.default_stream)
        device.sync()
        write(buffer, word)
        return buffer

    def known_pool(byte_length):
        pool = make_pool(byte_length)
        other.ask("know", pool)
        return pool

    def mapped(byte_length):
        pool = known_pool(byte_length)
        buffer = allocate(pool, byte_length, 0)
        other.keep(buffer, pickle.dumps(buffer))

        def prepare(word):
            write(buffer, word)
            return buffer

        return rounds(prepare, lambda it: other.ask("mapped", pickle.dumps(it))), device.sync

    def of_known_pool(byte_length):
        pool = known_pool(byte_length)
        loop = rounds(
            lambda word: allocate(pool, byte_length, word),
            lambda it: other.ask("pool", pickle.dumps(it)),
            lambda it: it.close(),
        )
        return loop, device.sync

    def of_new_pool(byte_length):
        def finish(buffer):
            pool = buffer.memory_resource
            buffer.close()
            device.sync()
            pool.close()

        loop = rounds(
            lambda word: allocate(make_pool(byte_length), byte_length, word),
            lambda it: other.ask("firstPool", it),
            finish,
        )
        return loop, device.sync

    return {
        "handOver.mapped": mapped,
        "handOver.pool": of_known_pool,
        "handOver.firstPool": of_new_pool,
        **launch_batches(device, read),
    }


if __name__ == "__main__":
    serve("cuda.core", start)

"""numba's hand-over: an IpcArrayHandle through a pipe of multiprocessing."""

import multiprocessing

from hand_over import PipedOther, rounds


def answer(channel):
    """What the other process does."""
    kept = None
    array = None
    while True:
        try:
            kind, handle = channel.recv()
        except EOFError:
            return
        word = 0
        if kind in ("keep", "drop") and kept is not None:
            array = None
            kept.close()
            kept = None
        if kind == "keep":
            kept, array = handle, handle.open()
        elif kind == "mapped":
            word = int(array[0])
        elif kind == "legacy":
            word = int(handle.open()[0])
            handle.close()
        channel.send(word)


def hand_over_batches(cuda):
    import numpy

    other = PipedOther(multiprocessing.get_context("spawn"), answer)
    host = numpy.zeros(1, dtype=numpy.uint32)

    def open_array(byte_length):
        array = cuda.device_array(byte_length // 4, dtype=numpy.uint32)
        first = array[:1]

        def prepare(word):
            host[0] = word
            first.copy_to_device(host)
            cuda.synchronize()

        return array, prepare

    def mapped(byte_length):
        array, prepare = open_array(byte_length)
        other.keep(array, array.get_ipc_handle())
        return rounds(prepare, lambda _: other.ask("mapped")), cuda.synchronize

    def legacy(byte_length):
        array, prepare = open_array(byte_length)
        other.drop()
        handle = array.get_ipc_handle()
        return rounds(prepare, lambda _: other.ask("legacy", handle)), cuda.synchronize

    return {"handOver.mapped": mapped, "handOver.legacy": legacy}

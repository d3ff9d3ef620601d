"""Fills the frames of 41-python-frames.ts, with CuPy where it is installed."""

import os

import cuffi

try:
    if os.environ.get('CUFFI_DRIVER') == 'emulated':
        raise ImportError('CuPy needs a GPU')
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
except ImportError:
    cupy = stream = None

parent = cuffi.parent()
with cuffi.Channel(4, (480, 640), 'uint8', deliver='all') as frames:
    parent.send({'frames': frames})
    for number in range(5):
        slot = frames.acquire()  # a slot that Node has released
        if cupy:
            with stream:
                # CuPy's kernels write into the slot: nothing is copied.
                cupy.asarray(slot.array)[:] = cupy.arange(640, dtype='uint8') + number
        else:
            slot.array.copy_from_host(bytes((at + number) % 256 for at in range(640)) * 480)
        # Node gets the frame when the work of the stream is done.
        slot.publish(stream, meta={'exposure': number / 2})
    frames.drained(timeout=10)

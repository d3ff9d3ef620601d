"""Receives hand-overs as receiver-child.ts does, in Python, with the companion of cuffi.

It replies to a buffer with its first word, read from the device, after it closed the buffer; to None
with None.

    receiver.py BUSY_POLL_US
"""

import ctypes
import struct
import sys

import cuffi

BLOCK, MOST_BLOCKS = 1 << 20, 64
pattern = bytearray((at * 31 + (at >> 8)) & 255 for at in range(BLOCK))

parent = cuffi.parent()
parent.busy_poll_us = int(sys.argv[1])
cuda = cuffi._driver.cuda_driver()
word = ctypes.c_uint32()
# As the other peers do, it reads without a wait for the work of other streams.
cuda.cuCtxPushCurrent_v2(cuffi._devices.all_devices()[0].context)


def compare(buffer):
    """Compares the parts that pattern.ts has written."""
    length = buffer.nbytes
    last = -(-length // BLOCK) - 1
    count = min(last + 1, MOST_BLOCKS)
    for n in range(count):
        at = int(n * last / max(count - 1, 1) + 0.5) * BLOCK
        size = min(BLOCK, length - at)
        host = ctypes.create_string_buffer(size)
        cuda.cuMemcpyDtoH_v2(host, buffer.ptr + at, size)
        expected = bytearray(pattern[:size])
        expected[:4] = struct.pack('<I', at // BLOCK)
        if host.raw != bytes(expected):
            return f'wrong bytes after byte {at}'
    return 'compared'


kept, compares_next = [], False
parent.send(None)
for value in parent:
    answer = None
    if isinstance(value, cuffi.DeviceArray):
        if compares_next:
            answer, compares_next = compare(value), False
        else:
            cuda.cuMemcpyDtoH_v2(ctypes.byref(word), value.ptr, 4)
            answer = word.value
        value.close()
    elif value and 'keep' in value:
        kept += value['keep']
    elif value and 'drop' in value:
        for buffer in kept:
            buffer.close()
        kept = []
    elif value and 'compareNext' in value:
        compares_next = True
    parent.send(answer)

"""The other end of a channel in Python, with the companion of cuffi: as channel-child.ts, and as a producer.

It takes as many slots ahead as it is asked for, and replies when they are queued; or publishes so many, and
replies with the nanoseconds until all were released. It closes a channel when ordered to.
"""

import ctypes
import time

import cuffi

parent = cuffi.parent()
cuda = cuffi._driver.cuda_driver()


def new_stream():
    stream = ctypes.c_uint64()
    with cuffi._devices.all_devices()[0]:
        cuda._library.cuStreamCreate(ctypes.byref(stream), 1)
    return stream.value


def queue_ahead(channel, stream, count):
    for slot in channel.ahead(stream):
        slot.release(stream)
        count -= 1
        if count == 0:
            return


def publish(channel, stream, count):
    start = time.perf_counter_ns()
    for _ in range(count):
        channel.acquire(stream=stream).publish(stream)
    channel.drained()
    return time.perf_counter_ns() - start


consumers, producers = [], []
parent.send(None)
for order in parent:
    answer = None
    if 'channel' in order:
        order['channel'].busy_poll_us = order['busyPollUs']
        consumers.append((order['channel'], new_stream()))
    elif 'drop' in order:
        consumers[order['drop']][0].close()
    elif 'ahead' in order:
        queue_ahead(*consumers[order['ahead']], order['count'])
    elif 'make' in order:
        answer = cuffi.Channel(order['make'], byte_length=order['byteLength'], deliver='all', ahead=True,
                               busy_poll_us=order['busyPollUs'])  # fmt: skip
        producers.append((answer, new_stream()))
    elif 'close' in order:
        producers[order['close']][0].close()
    else:
        answer = publish(*producers[order['publish']], order['count'])
    parent.send(answer)

"""The driver calls that the bench measures, through cuda.bindings.

On the kinds of objects that the others use: a non-blocking stream, an event without timing, 4 MiB
of cuMemAlloc memory, a pool that keeps what is not used.
"""

from itertools import repeat

from serve import serve

CU_STREAM_NON_BLOCKING = 1
CU_EVENT_DISABLE_TIMING = 2
BUFFER_BYTES = 4 << 20


def check(answer, call):
    """What a call gave beside its status."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"{call} answered {int(status)}")
    return values[0] if values else None


def make_pool(driver, device):
    props = driver.CUmemPoolProps()
    props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = int(device)
    pool = check(driver.cuMemPoolCreate(props), "cuMemPoolCreate")
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    everything = driver.cuuint64_t(2**64 - 1)
    check(driver.cuMemPoolSetAttribute(pool, threshold, everything), "cuMemPoolSetAttribute")
    return pool


def start():
    from cuda.bindings import driver

    check(driver.cuInit(0), "cuInit")
    device = check(driver.cuDeviceGet(0), "cuDeviceGet")
    context = check(driver.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain")
    check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent")
    stream = check(driver.cuStreamCreate(CU_STREAM_NON_BLOCKING), "cuStreamCreate")
    event = check(driver.cuEventCreate(CU_EVENT_DISABLE_TIMING), "cuEventCreate")
    buffer = check(driver.cuMemAlloc(BUFFER_BYTES), "cuMemAlloc")

    def settle():
        check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize")

    # Each makes the calls with names that are local, Python's fastest way, and looks at the last
    # status.
    def stream_done(calls, query=driver.cuStreamQuery):
        answer = (0,)
        for _ in repeat(None, calls):
            answer = query(stream)
        check(answer, "cuStreamQuery")

    def event_record(calls, record=driver.cuEventRecord):
        answer = (0,)
        for _ in repeat(None, calls):
            answer = record(event, stream)
        check(answer, "cuEventRecord")

    def get_ipc_handle(calls, get=driver.cuIpcGetMemHandle):
        answer = (0,)
        for _ in repeat(None, calls):
            answer = get(buffer)
        check(answer, "cuIpcGetMemHandle")

    def open_pool(byte_length):
        pool = make_pool(driver, device)

        def loop(calls, allocate=driver.cuMemAllocFromPoolAsync, free=driver.cuMemFreeAsync):
            answer = (0,)
            for _ in repeat(None, calls):
                _, address = allocate(byte_length, pool, stream)
                answer = free(address, stream)
            check(answer, "cuMemFreeAsync")

        return loop, settle

    def open_device(byte_length):
        def loop(calls, allocate=driver.cuMemAlloc, free=driver.cuMemFree):
            answer = (0,)
            for _ in repeat(None, calls):
                _, address = allocate(byte_length)
                answer = free(address)
            check(answer, "cuMemFree")

        return loop, settle

    return {
        "stream.done": lambda _: (stream_done, settle),
        "event.record": lambda _: (event_record, settle),
        "getIpcHandle": lambda _: (get_ipc_handle, settle),
        "pool.allocate": open_pool,
        "device.allocate": open_device,
    }


serve("cuda.bindings", start)

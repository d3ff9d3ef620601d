"""The driver calls that the bench measures, through cuda.bindings.

On the kinds of objects that the others use: a non-blocking stream, an event without timing, 4 MiB
of cuMemAlloc memory, a pool that keeps what is not used.
"""

from ctypes import addressof, c_uint8
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

    def require_memory(address, byte_length):
        """What is written to memory is what is read of it."""
        sent = (c_uint8 * byte_length)(*(at % 251 for at in range(byte_length)))
        seen = (c_uint8 * byte_length)()
        check(driver.cuMemcpyHtoD(address, addressof(sent), byte_length), "cuMemcpyHtoD")
        check(driver.cuMemcpyDtoH(addressof(seen), address, byte_length), "cuMemcpyDtoH")
        if bytes(seen) != bytes(sent):
            raise RuntimeError("what was written is not there")

    def open_pool(byte_length):
        pool = make_pool(driver, device)

        def verify():
            allocated = driver.cuMemAllocFromPoolAsync(byte_length, pool, stream)
            address = check(allocated, "cuMemAllocFromPoolAsync")
            settle()
            require_memory(address, byte_length)
            check(driver.cuMemFreeAsync(address, stream), "cuMemFreeAsync")
            settle()

        def loop(calls, allocate=driver.cuMemAllocFromPoolAsync, free=driver.cuMemFreeAsync):
            answer = (0,)
            for _ in repeat(None, calls):
                _, address = allocate(byte_length, pool, stream)
                answer = free(address, stream)
            check(answer, "cuMemFreeAsync")

        return loop, settle, verify

    def open_device(byte_length):
        def loop(calls, allocate=driver.cuMemAlloc, free=driver.cuMemFree):
            answer = (0,)
            for _ in repeat(None, calls):
                _, address = allocate(byte_length)
                answer = free(address)
            check(answer, "cuMemFree")

        def verify():
            address = check(driver.cuMemAlloc(byte_length), "cuMemAlloc")
            require_memory(address, byte_length)
            check(driver.cuMemFree(address), "cuMemFree")

        return loop, settle, verify

    return {
        "stream.done": lambda _: (stream_done, settle),
        "event.record": lambda _: (event_record, settle),
        "getIpcHandle": lambda _: (get_ipc_handle, settle),
        "pool.allocate": open_pool,
        "device.allocate": open_device,
    }


serve("cuda.bindings", start)

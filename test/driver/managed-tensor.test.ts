/** Tensors that a native library takes over, as C sees them and gives them back. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { recordCalls } from '../../ffi/driver.ts';
import { openLibrary } from '../../ffi/library.ts';
import { viewMemory } from '../../ffi/native.ts';
import { type Address, int, pointer } from '../../ffi/types.ts';
import {
  bfloat16,
  deviceArray,
  devices,
  float32,
  fromDLPack,
  managedTensor,
  mappedArray,
  Stream,
} from '../../src/index.ts';
import { noCompiler, openBuildFolder } from '../abi/toolchain.ts';
import { emulated } from '../support/driver.ts';
import { until } from '../support/iterations.ts';
import { Latch } from '../support/latch.ts';
import { leaves } from '../support/left-open.ts';
import { collectGarbage } from '../support/process-state.ts';

// Read when the emulated driver is opened, at its first call.
if (emulated) process.env['CUFFI_EMULATED_DEVICES'] = '2';

/** The DLDevice of a tensor, as C reads it. */
function deviceAt(address: number): readonly [type: number, id: number] {
  const view = new DataView(viewMemory(address as Address, 80));
  return [view.getInt32(40, true), view.getInt32(44, true)];
}

// The structs as dlpack.h of version 1.1 has them.
const SOURCE = `
#include <pthread.h>
#include <stdint.h>
typedef struct { uint32_t major, minor; } DLPackVersion;
typedef struct { int32_t device_type, device_id; } DLDevice;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
  void *data; DLDevice device; int32_t ndim; DLDataType dtype;
  int64_t *shape, *strides; uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensorVersioned {
  DLPackVersion version; void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *); uint64_t flags; DLTensor dl_tensor;
} DLManagedTensorVersioned;

int64_t field(DLManagedTensorVersioned *tensor, int which) {
  DLTensor *t = &tensor->dl_tensor;
  switch (which) {
    case 0: return tensor->version.major;
    case 1: return tensor->flags;
    case 2: return (int64_t)t->data;
    case 3: return t->device.device_type;
    case 4: return t->device.device_id;
    case 5: return t->ndim;
    case 6: return t->dtype.code * 1000 + t->dtype.bits + t->dtype.lanes * 1000000;
    case 7: return t->byte_offset;
    default: return which >= 20 ? t->strides[which - 20] : t->shape[which - 10];
  }
}
int consume(DLManagedTensorVersioned *tensor) { tensor->deleter(tensor); return 0; }

static int running;
static void *in_thread(void *tensor) {
  consume(tensor);
  __atomic_sub_fetch(&running, 1, __ATOMIC_SEQ_CST);
  return 0;
}
int consume_in_thread(DLManagedTensorVersioned *tensor) {
  pthread_t thread;
  __atomic_add_fetch(&running, 1, __ATOMIC_SEQ_CST);
  return pthread_create(&thread, 0, in_thread, tensor) || pthread_detach(thread);
}
int threads_running(void) { return __atomic_load_n(&running, __ATOMIC_SEQ_CST); }
`;

function openConsumer() {
  const path = openBuildFolder().compile('consumer.so', SOURCE, ['-shared', '-fPIC', '-pthread']);
  const library = openLibrary([path]);
  const bind = <A extends number[]>(name: string, parameters: Parameters<typeof library.bind>[1]) =>
    library.bind(name, parameters, 'int64') as unknown as (...args: A) => number;
  return {
    field: bind<[number, number]>('field', [pointer, int]),
    consume: bind<[number]>('consume', [pointer]),
    consumeInThread: bind<[number]>('consume_in_thread', [pointer]),
    threadsRunning: bind<[]>('threads_running', []),
  };
}

describe('NativeTensor', () => {
  test('C reads the tensor of a strided view, and its deleter ends it', {
    skip: noCompiler,
  }, () => {
    const { field, consume } = openConsumer();
    using array = deviceArray([4, 6], bfloat16);
    const view = array.slice({ start: 1 }, { step: 2 });
    const tensor = managedTensor(view);
    const read = [0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 20, 21].map((n) => field(tensor.address, n));
    assert.deepEqual(read, [1, 0, view.address, 2, 0, 2, 1_004_016, 0, 3, 3, 6, 2]);
    assert.equal(tensor.deleted, false);
    consume(tensor.address);
    assert.equal(tensor.deleted, true);
    tensor.delete();
    const readOnly = managedTensor(array.broadcastTo([2, 4, 6]));
    assert.deepEqual([field(readOnly.address, 1), field(readOnly.address, 20)], [1, 0]);
    readOnly.delete();
  });

  test('deleters run on other threads, too, while the loop turns', {
    skip: noCompiler,
  }, async () => {
    leaves('listener of process for exit', 'that of koffi, for calls of other threads');
    const { consumeInThread, threadsRunning } = openConsumer();
    using array = deviceArray(3, float32);
    const tensors = Array.from({ length: 50 }, () => managedTensor(array));
    for (const { address } of tensors) assert.equal(consumeInThread(address), 0);
    assert.equal(threadsRunning(), 50, 'each waits for the main thread');
    await until(() => threadsRunning() === 0);
    assert.ok(tensors.every(({ deleted }) => deleted));
  });

  test('C reads on which device the memory is, or which kind of host memory', (t) => {
    using mapped = mappedArray(4, float32);
    const borrowed = fromDLPack({
      data: mapped.address,
      device: { type: 3, id: 0 },
      ndim: 1,
      dtype: float32.dlpack,
      shape: [4],
    });
    for (const array of [mapped, borrowed]) {
      const tensor = managedTensor(array);
      assert.deepEqual(deviceAt(tensor.address), [3, 0]);
      tensor.delete();
    }
    if (devices().length < 2) {
      t.skip('this needs a second GPU');
      return;
    }
    using array = deviceArray(4, float32, { device: 1 });
    const tensor = managedTensor(array);
    assert.deepEqual(deviceAt(tensor.address), [2, 1]);
    tensor.delete();
  });

  test('the stream of its consumer waits for the producer on another device', async (t) => {
    if (devices().length < 2) {
      t.skip('this needs a second GPU');
      return;
    }
    using producer = Stream.create({ nonBlocking: true, device: 1 });
    using consumer = Stream.create({ nonBlocking: true, device: 0 });
    using array = deviceArray(4, float32, { device: 1, stream: producer });
    using latch = new Latch(array.context);
    latch.hold(producer);
    const tensor = managedTensor(array, { stream: consumer });
    assert.equal(consumer.done, false);
    latch.open();
    await consumer.synchronize();
    tensor.delete();
  });

  test('the memory stays until the tensor is deleted, the array closed or collected', async () => {
    const freed = (): number => recorder.calls.filter(({ name }) => /^cuMemFree/.test(name)).length;
    const make = () => managedTensor(deviceArray(3, float32));
    using closed = deviceArray(3, float32);
    const tensors = [managedTensor(closed), make()];
    const recorder = recordCalls();
    closed.close();
    assert.equal(closed.buffer.closed, true);
    await collectGarbage();
    await closed.context.flush();
    assert.equal(freed(), 0);
    for (const tensor of tensors) tensor.delete();
    await closed.context.flush();
    recorder.stop();
    assert.equal(freed(), 2);
  });
});

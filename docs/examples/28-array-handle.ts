/** An array in another process, in numba's two forms: by a handle, and by the driver's 64 bytes. */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { float32, Stream, toDevice } from 'cuffi';
import { getIpcHandle, IpcArrayHandle, openIpcArray } from 'cuffi/ipc';

if (process.send) {
  const [message] = await once(process, 'message');

  // The handle: it knows dtype, shape and strides, and when the work on the array is done.
  using handle = IpcArrayHandle.from(message);
  const array = handle.open();
  await handle.ready({ timeoutMs: 10_000 });
  console.log(`the child has ${array.dtype} ${array.shape}:`, await array.copyToHost());
  array.fill(8);

  // The bytes alone, as numba's open_ipc_array takes them: the caller states dtype and layout, and no order.
  const { handle: bytes, byteOffset, layout } = handle;
  using same = openIpcArray({
    handle: bytes,
    byteOffset,
    shape: layout?.shape ?? [],
    strides: layout?.strides ?? [],
    dtype: float32,
  });
  console.log(`the same memory: ${await same.get(1, 0)}`);
  process.disconnect();
} else {
  using stream = Stream.create({ nonBlocking: true });
  using matrix = await toDevice([1, 2, 3, 4, 5, 6], { dtype: float32, stream });
  const columns = matrix.reshape([2, 3]).slice('...', { start: 1 });
  columns.fill(7);

  // Kept until the handle is closed, whatever becomes of the array.
  using handle = getIpcHandle(columns, { stream });
  const child = fork(import.meta.filename);
  child.send(handle);
  await once(child, 'exit');
  console.log('the parent reads', await matrix.copyToHost());
}

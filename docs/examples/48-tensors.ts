/** Weights from a safetensors file, once on the GPU: a worker uses the same memory, for reading only. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type DeviceBuffer, type DtypeName, fromBuffer, toDevice } from 'cuffi';
import { parentPeer, spawnPeer } from 'cuffi/ipc';
import { loadTensors, saveTensors } from 'cuffi/tensors';

/** All memory of the weights as one object, and what is where. */
interface Weights {
  readonly memory: DeviceBuffer;
  readonly table: readonly (readonly [string, DtypeName, readonly number[], number])[];
}

if (process.argv[2] === 'worker') {
  const parent = parentPeer<Weights, string>();
  const { memory, table } = await parent.receive();
  for (const [name, dtype, shape, byteOffset] of table) {
    const array = fromBuffer(memory, shape, dtype, { byteOffset });
    console.log(`the worker has ${name}:`, await array.copyToHost());
  }
  await parent.send(`the memory is for ${memory.access}`);
  memory.close();
} else {
  const folder = mkdtempSync(join(tmpdir(), 'tensors-'));
  const path = join(folder, 'model.safetensors');
  {
    using weight = await toDevice(
      [
        [1, 2],
        [3, 4],
      ],
      { dtype: 'float32' },
    );
    using bias = await toDevice(new Float64Array([0.5]));
    await saveTensors(path, { weight, bias }, { metadata: { format: 'pt' } });
  }

  using tensors = await loadTensors(path, {
    onProgress: ({ loadedBytes, totalBytes }) =>
      console.log(`${loadedBytes} of ${totalBytes} bytes`),
  });
  rmSync(folder, { recursive: true }); // the weights are on the GPU
  console.log(tensors.names(), tensors.dtypeOf('weight'), tensors.metadata.get('format'));

  await using worker = spawnPeer<string, Weights>(import.meta.filename, { args: ['worker'] });
  await worker.send({
    memory: tensors.buffer.readOnly(),
    table: Array.from(tensors, ([name, array]) => {
      return [name, array.dtype.name as DtypeName, array.shape, array.byteOffset] as const;
    }),
  });
  console.log(await worker.receive());
}

/** An array with a shape: views of it, assignment, and its items back on the host. */
import { deviceArrayLike, float32, toDevice, toNested } from 'cuffi';

using matrix = await toDevice(new Float32Array([1, 2, 3, 4, 5, 6]), { shape: [2, 3] });
console.log(`${matrix.dtype}, shape ${matrix.shape}, strides ${matrix.strides} bytes`);

// Views: the same memory, nothing is copied.
const column = matrix.slice('...', 1);
const last = matrix.at(-1);
column.fill(0);
await last.set([{ start: 1 }], [50, 60]);
console.log(toNested(await matrix.copyToHost(), matrix.shape));

// A view has any strides; copies take the items in the order of their indices.
console.log(await matrix.T.copyToHost());

using result = deviceArrayLike(matrix);
matrix.slice({ step: -1 }).copyTo(result);
console.log(`first row: ${await result.at(0).copyToHost()}, last item: ${await result.get(1, 2)}`);

using counts = await toDevice(
  [
    [1, 2],
    [3, 4],
  ],
  { dtype: float32 },
);
console.log(counts);

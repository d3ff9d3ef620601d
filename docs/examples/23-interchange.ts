/** Arrays for other GPU libraries of the process, and of them: nothing is copied. */
import {
  cudaArrayInterface,
  dlpack,
  float32,
  fromCudaArrayInterface,
  fromDLPack,
  fromPointer,
  managedTensor,
  Stream,
  toDevice,
} from 'cuffi';

using stream = Stream.create({ nonBlocking: true });
using matrix = await toDevice([1, 2, 3, 4, 5, 6], { dtype: float32, stream });
const columns = matrix.reshape([2, 3]).T;

// What Python's libraries call __cuda_array_interface__: strides in bytes, and the stream to wait for.
const described = cudaArrayInterface(columns);
console.log(described.shape, described.strides, described.typestr);
console.log(`names its stream: ${described.stream === stream.handle}`);

// A consumer's stream waits for that one: what it is given from now on sees what was queued before.
using consumer = Stream.create({ nonBlocking: true });
matrix.fill(7);
const seen = fromCudaArrayInterface(described, { stream: consumer });
console.log(await seen.copyToHost());

// DLPack: strides in items; the consumer's stream is passed when the tensor is made.
const tensor = dlpack(columns, { stream: consumer });
console.log(tensor.device, tensor.dtype, tensor.strides);
fromDLPack(tensor, { stream: consumer }).fill(0.5);
await consumer.synchronize();
console.log(await matrix.copyToHost());

// For C: a DLManagedTensorVersioned, which a native library takes over by its address.
const managed = managedTensor(columns, { stream: consumer });
console.log(`a tensor for C: ${managed.address > 0}`);
managed.delete(); // the library's part: it calls the tensor's deleter

// The address alone, where that is all that a library tells.
const last = fromPointer(matrix.address + 16, { shape: 2, dtype: float32, stream, owner: matrix });
last.fill(9);
console.log(`the last item: ${await matrix.get(5)}`);

/** Calls a driver function that cuffi does not wrap. */
import { Context, CuffiError, check } from 'cuffi';
import { declareFunction, readUint32, types, writeInt32 } from 'cuffi/ffi';

// As cuda.h has it: CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version)
const cuCtxGetApiVersion = declareFunction('cuCtxGetApiVersion', [
  types.CUcontext,
  types.out(types.uint),
]);
const cuFuture = declareFunction('cuFuture', [types.uint], { since: 99_000 });

const version = writeInt32(0);
const status = cuCtxGetApiVersion(Context.primary().handle, version);
// The emulated driver has only the functions of `cu`.
if (status === 0) console.log(`API version: ${readUint32(version)}`);
else console.log(`API version: status ${status}`);

try {
  check(cuFuture(0), cuFuture);
} catch (error) {
  if (!(error instanceof CuffiError)) throw error;
  console.log(`cuFuture: ${error.code}`);
}

import assert from 'node:assert/strict';
import { describe, type TestContext, test } from 'node:test';
import { selectDriver } from '../../../../../ffi/driver.ts';
import type { Driver, FunctionName } from '../../../../../ffi/functions.ts';
import { duplicateFd, isOpenFd } from '../../../../../ffi/linux/libc.ts';
import { isProcessEnding, processStartTime } from '../../../../../ffi/linux/process.ts';
import { CUresult } from '../../../../../ffi/results.ts';
import { CudaEvent, DeviceBuffer, MemoryPool, VirtualMemory } from '../../../../../src/index.ts';
import { localProcess } from '../../../../../src/ipc/identity.ts';
import { exportIpc, openIpc } from '../../../../../src/ipc/index.ts';
import { withChecksum } from '../../../../../src/ipc/sharing/descriptor-codec.ts';
import { killed, startProcess } from '../../../../support/program.ts';
import { emulate } from '../../emulate.ts';

const SIZE = 2 << 20;

/** Objects of each kind, and the driver functions that open them. */
const kinds = {
  memory: [() => DeviceBuffer.allocate(SIZE), 'cuIpcOpenMemHandle_v2'],
  event: [() => CudaEvent.create({ interprocess: true }), 'cuIpcOpenEventHandle'],
  pool: [() => newPool(), 'cuMemPoolImportFromShareableHandle'],
  'memory of a new pool': [() => newPool().allocate(SIZE), 'cuMemPoolImportFromShareableHandle'],
  'memory of a pool': [() => newPool().allocate(SIZE), 'cuMemPoolImportPointer'],
  'access to a pool': [() => newPool().allocate(SIZE), 'cuMemPoolGetAccess'],
  'virtual memory': [
    () => VirtualMemory.reserve(SIZE, { shareable: true }).grow(SIZE),
    'cuMemImportFromShareableHandle',
  ],
} as const satisfies Record<string, readonly [make: () => object, opens: FunctionName]>;

const newPool = (): MemoryPool => MemoryPool.create({ maxSize: 32 << 20, shareable: true });

describe('openDescriptor', () => {
  /** Opens an object while `name` fails with `status`. If `ends`, its exporter is killed in that call. */
  function open(
    t: TestContext,
    make: () => object,
    name: FunctionName,
    { ends, status }: { readonly ends: boolean; readonly status: CUresult },
  ): unknown {
    const driver = emulate();
    const { descriptor, fds } = exportIpc(make() as DeviceBuffer);
    const exporter = startProcess('sleep', ['60']);
    t.after(() => killed(exporter));
    const pid = exporter.pid as number;
    const { pidNamespace } = localProcess();
    const by = { pid, startTime: processStartTime(pid), pidNamespace };
    selectDriver({
      ...driver,
      [name]: () => {
        if (ends) exporter.kill('SIGKILL');
        while (ends && !isProcessEnding(pid));
        return status;
      },
    } as Driver);
    const received = fds.map(duplicateFd);
    try {
      return openIpc(withChecksum({ ...descriptor, ...by } as never), { fds: received });
    } catch (error) {
      assert.ok(!received.some(isOpenFd), 'the descriptors are closed');
      return error;
    }
  }

  const { CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_OUT_OF_MEMORY } = CUresult;

  for (const [kind, [make, name]] of Object.entries(kinds))
    test(`${kind} whose exporter ends before ${name} is refused as of a process that has exited`, (t) => {
      const gone = open(t, make, name, { ends: true, status: CUDA_ERROR_INVALID_HANDLE }) as Error;
      const { code, cause } = gone as { code?: string; cause?: { name: string; call: string } };
      // The file descriptors of virtual memory keep it, so the refusal has another cause.
      assert.equal(code, kind === 'virtual memory' ? 'ipc-failed' : 'exporter-gone');
      if (kind !== 'virtual memory') assert.match(gone.message, /^process \d+, .* has exited\. It/);
      assert.deepEqual([cause?.name, cause?.call], ['CudaError', name]);
    });

  test('what the driver refuses of a living process, or for lack of memory, keeps its code', (t) => {
    const [make, name] = kinds.memory;
    for (const options of [
      { ends: false, status: CUDA_ERROR_INVALID_HANDLE },
      { ends: true, status: CUDA_ERROR_OUT_OF_MEMORY },
    ])
      assert.equal((open(t, make, name, options) as { code?: string }).code, 'ipc-failed');
  });
});

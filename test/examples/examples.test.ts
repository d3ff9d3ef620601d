/** Every example of the docs runs, and prints what it promises. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { canShareProcess, InTurn } from '../support/in-turn.ts';
import { iterations } from '../support/iterations.ts';
import { programFile, startProgram } from '../support/program.ts';

const folder = new URL('../../docs/examples/', import.meta.url);

/** Lines that an example prints, wherever it runs. */
const promised: Readonly<Record<string, readonly RegExp[]>> = {
  '01-devices.ts': [/^CUDA \d+\.\d+$/m, /^0: .+ \(GPU-/m, /shares memory: yes/],
  '02-buffers.ts': [/^Float32Array\(4\) \[ 1, 20, 3, 4 \]$/m],
  '03-streams-and-events.ts': [/^done: true, the last value: 99$/m, /^took a time: true$/m],
  '04-share-memory.ts': [
    /^the child reads Float32Array\(3\) \[ 1, 2, 3 \]$/m,
    /^the parent reads Float32Array\(3\) \[ 4, 5, 6 \]$/m,
  ],
  '05-share-an-event.ts': [/^the child reads Set\(1\) \{ 42 \}$/m],
  '06-beside-other-libraries.ts': [
    /^current inside: true$/m,
    /^current outside: undefined$/m,
    /^theirs still holds Set\(1\) \{ 9 \}$/m,
  ],
  '07-record-driver-calls.ts': [/^cuMemsetD8Async$/m, /^1024 bytes copied$/m],
  '08-pinned-memory.ts': [/^Float32Array\(3\) \[ 1, 2, 3 \]$/m, /^after close: 0$/m],
  '09-pin-arrays.ts': [/^copied back: true$/m],
  '10-mapped-memory.ts': [/^the CPU reads 7$/m, /^the device reads 8$/m],
  '11-managed-memory.ts': [/^the device reads 1\.5$/m, /^out of memory: .+ were requested/m],
  '12-memory-pool.ts': [
    /^Set\(1\) \{ 7 \}$/m,
    /^the same memory again: true$/m,
    /^in use: 0, at most: \d+, kept: \d+$/m,
    /^kept after trim: 0$/m,
  ],
  '13-grow-in-place.ts': [
    /^1000 of 67108864 bytes, \d+ mapped$/m,
    /^the same address: true, still there: true$/m,
  ],
  '14-two-devices.ts': [/^on the other device: Set\(1\) \{ 5 \}$|^this needs a second GPU$/m],
  '15-rows-and-slices.ts': [
    /^1 1 1 1 1 1 1 1\n1 1 1 7 7 1 1 1\n1 1 1 7 7 1 1 1\n1 1 1 1 1 1 1 1$/m,
  ],
  '16-pool-manager.ts': [
    /^all there is: 64 MiB$/m,
    /^the same memory again: true$/m,
    /^Set\(1\) \{ 7 \}$/m,
  ],
  '17-memory-budget.ts': [
    /^700000 bytes were asked for, 348576 are left of the budget$/m,
    /^left: 348576$/m,
  ],
  '18-parent-and-child.ts': [
    /^the child has step 2: Float32Array\(3\) \[ 2, 4, 6 \]$/m,
    /^the child answers \{ step: 2, done: true \}$/m,
    /^the parent reads Float32Array\(3\) \[ 4, 8, 12 \]$/m,
    /^the child sees the end$/m,
  ],
  '19-strangers.ts': [
    /^a process of user \d+ connects$/m,
    /^1024 wide, all of it Set\(1\) \{ 7 \}$/m,
    /^the display says shown$/m,
  ],
  '20-share-a-pool.ts': [
    /^the pool is another process's: true$/m,
    /^only process \d+, which made this pool, can allocate from it/m,
    /^the child reads Set\(1\) \{ 1 \}\nof the pool: true, mapped: true\nthe child reads Set\(1\) \{ 2 \}$/m,
    /^the parent reads Set\(1\) \{ 10 \} Set\(1\) \{ 11 \}$/m,
  ],
  '21-arrays.ts': [
    /^float32, shape 2,3, strides 12,4 bytes$/m,
    /^\[ \[ 1, 0, 3 \], \[ 4, 50, 60 \] \]$/m,
    /^Float32Array\(6\) \[ 1, 4, 0, 50, 3, 60 \]$/m,
    /^first row: 4,50,60, last item: 3$/m,
    /^DeviceArray\(float32 \[2, 2\] on cuda:0, C\) \[1, 2, 3, 4\]$/m,
  ],
  '22-array-in-a-stream.ts': [
    /^2 2 3 3 2 2 3 3 1 1 3 3 1 1 3 3$/m,
    /^Float32Array\(2\) \[ 0\.5, 0\.5 \]$/m,
  ],
  '23-interchange.ts': [
    /^\[ 3, 2 \] \[ 4, 12 \] <f4\nnames its stream: true$/m,
    /^Float32Array\(6\) \[ 7, 7, 7, 7, 7, 7 \]$/m,
    /^\{ type: 2, id: 0 \} \{ code: 2, bits: 32, lanes: 1 \} \[ 1, 3 \]$/m,
    /^Float32Array\(6\) \[ 0\.5, 0\.5, 0\.5, 0\.5, 0\.5, 0\.5 \]$/m,
    /^a tensor for C: true\nthe last item: 9$/m,
  ],
  '24-saxpy.ts': [
    /^all of y: 6$/m,
    /^RangeError: block along x, for kernel saxpy, must be an integer from 1 to 1024, not 4096$/m,
    /^registers of a thread: known$/m,
    /^all of y after the graph: 30$/m,
  ],
  '25-compile.ts': [
    /^compiled: _Z5scaleIfEvPT_j is in the PTX: true\n(running it needs a GPU|Float32Array\(3\) \[ 3, 6, 9 \])$|^this needs libnvrtc: pip install nvidia-cuda-nvrtc$/m,
  ],
  '26-transpose.ts': [/^transposed: true$/m, /^item \[2, 1\]: 72$/m],
  '27-kernel-on-shared-array.ts': [
    /^the child says halved$/m,
    /^the parent reads Float32Array\(3\) \[ 1, 2, 3 \]$/m,
  ],
  '28-array-handle.ts': [
    /^the child has float32 2,2: Float32Array\(4\) \[ 7, 7, 7, 7 \]$/m,
    /^the same memory: 8$/m,
    /^the parent reads Float32Array\(6\) \[ 1, 8, 8, 4, 8, 8 \]$/m,
  ],
  '29-exporter.ts': [/^the exporter reads Set\(1\) \{ 2 \}$/m],
  '29-importer.ts': [/^the importer reads Set\(1\) \{ 1 \}$/m],
  '30-worker-pool.ts': [/^the sum of the squares of 0 to 19 is 2470$/m],
  '31-pass-it-on.ts': [
    /^C reads Set\(1\) \{ 1 \}\nB says C \(\d+\) wrote\nA reads Set\(2\) \{ 2, 1 \}$/m,
  ],
  '32-two-consumers.ts': [
    /^the first reads \[ 1 \]\nthe second reads \[ 2 \]$/m,
    /^the second: PeerGoneError\nthe first reads \[ 3 \]\nkept for others: 0$/m,
  ],
  '33-drain.ts': [
    /^the worker says mine\n1 thing of 1048576 bytes is kept for the worker\nTimeoutError$/m,
    /^kept for others: 0$/m,
    /^the worker: this DeviceBuffer is closed: process N has revoked it$/m,
  ],
  '34-http-server.ts': [
    /^200 \{"brightest":99\}\n503 process N has exited with code N without closing/m,
    /^200 \{"brightest":122\}\n400 byteLength must be an integer of at least N, not N$/m,
  ],
  '35-ring.ts': [/^the consumer read 45\nframes filled: 10$/m],
  '36-timeline.ts': [
    /^the consumer read \[ 10, 20, 30, 40, 50 \]$/m,
    /^the producer is at 5 and the consumer at 5$/m,
  ],
  '37-shared-frames.ts': [
    /^frame 1 is full of Set\(1\) \{ 1 \}$/m,
    /^frame 4 is full of Set\(1\) \{ 4 \}$/m,
  ],
  '38-frame-pipeline.ts': [
    /^shows: 20 frames, first pixels add up to 190$/m,
    /^stores: 20 frames, first pixels add up to 190$/m,
    /^counts: 20 frames, first pixels add up to 190$/m,
  ],
  '39-inference-ring.ts': [
    /^workers: PeerGoneError, ended, ended$/m,
    /^answers: 0 2 4 6 8 10 12 14 16 18 20 22$/m,
  ],
  '40-python-model.ts': [
    /^sum 10, doubled \[2,4,6,8\], shape \[2,2\]$/m,
    /^ValueError: the image must be float32, not uint8$/m,
  ],
  '41-python-frames.ts': [
    /^4 slots of uint8 \[480,640\]$/m,
    /^frame 4 \{ exposure: 2 \} begins with Uint8Array\(3\) \[ 4, 5, 6 \]$/m,
    /^the camera has closed the channel$/m,
  ],
  '42-model-server.ts': [/^\[ '4', '8', 'not 4 numbers' \]$/m, /^after a crash: 10$/m],
  '43-other-functions.ts': [
    /^API version: (\d+|status 801)$/m,
    /^cuFuture: (not-supported|CUDA_ERROR_NOT_SUPPORTED)$/m,
  ],
  '44-pool-server.ts': [
    /^answers: 0 10 20 30 40 50 60 70$/m,
    /^a task that crashes its worker: 503\nthe next one: 10\n9 done, 1 failed, 4 workers$/m,
  ],
  '45-metrics.ts': [
    /^cuffi_tasks_total\{result="done"\} 3\ncuffi_tasks_total\{result="failed"\} 0$/m,
    /^cuffi_shared_bytes_total 3145728$/m,
    /^a task took some time: true$/m,
  ],
  '46-traces.ts': [
    /^answer: 4\ncuffi\.request of GET \/root\/16, to the worker: true, ok$/m,
    /^cuffi\.request of GET \/root\/16, to the worker: true, RangeError: -1 is negative$/m,
  ],
  '47-web-streams.ts': [/^read there: 1 2 3 4 5$/m],
  '48-tensors.ts': [
    /^24 of 24 bytes$/m,
    /^\[ 'bias', 'weight' \] F32 pt$/m,
    /^the worker has weight: Float32Array\(4\) \[ 1, 2, 3, 4 \]$/m,
    /^the memory is for read$/m,
  ],
};

/** Programs that do their part together, with the path of a file for both. */
const together = ['29-exporter.ts', '29-importer.ts'];

const TIMEOUT_MS = 60_000;

async function run(
  name: string,
  args: readonly string[] = [],
  more: NodeJS.ProcessEnv = {},
): Promise<void> {
  const child = startProgram(new URL(name, folder), args, {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, CUFFI_CACHE: 'off', ...more },
    timeout: TIMEOUT_MS,
  });
  let printed = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (data) => {
      printed += data;
    });
  const [code] = await once(child, 'close');
  assert.equal(code, 0, printed);
  for (const pattern of promised[name] ?? []) assert.match(printed, pattern);
}

/** Runs an example in a process of several, where that can be. */
async function runInTurn(
  name: string,
  inTurn: InTurn,
  more: NodeJS.ProcessEnv = {},
): Promise<void> {
  if (!canShareProcess(readFileSync(new URL(name, folder), 'utf8'))) return run(name, [], more);
  const { text, complaints, ending } = await inTurn.run(
    {
      path: programFile(new URL(name, folder)).path,
      directory: process.cwd(),
      env: { CUFFI_CACHE: 'off', ...more },
    },
    TIMEOUT_MS,
  );
  const printed = text + complaints;
  assert.equal(ending, 0, printed);
  for (const pattern of promised[name] ?? []) assert.match(printed, pattern);
}

describe('the examples of the docs', () => {
  const inTurn = new InTurn();
  after(() => inTurn[Symbol.asyncDispose]());

  test('every example is known here', () => {
    const files = readdirSync(folder).sort();
    assert.deepEqual(
      files.filter((file) => file.endsWith('.ts')),
      Object.keys(promised),
    );
    // Python's part of an example has its name.
    for (const file of files.filter((file) => !file.endsWith('.ts')))
      assert.ok(promised[file.replace(/\.py$/, '.ts')], file);
  });

  for (const name of Object.keys(promised)) {
    if (together.includes(name)) continue;
    test(`docs/examples/${name} prints what it promises`, { timeout: 90_000 }, () =>
      runInTurn(name, inTurn),
    );
  }

  test('docs/examples/29: the exporter and the importer do', { timeout: 60_000 }, async () => {
    const directory = mkdtempSync(join(tmpdir(), 'cuffi-example-'));
    try {
      await Promise.all(together.map((name) => run(name, [join(directory, 'shared.json')])));
    } finally {
      rmSync(directory, { recursive: true });
    }
  });
});

describe('the examples on the emulated driver of CUDA 11.4, the oldest', () => {
  const env = { CUFFI_DRIVER: 'emulated', CUFFI_EMULATED_VERSION: '11.4' };
  const few = ['04-share-memory.ts', '24-saxpy.ts', '35-ring.ts'];
  // Its streams wait for a timeline, which drivers before 11.7 cannot.
  const newer = ['36-timeline.ts', ...together];
  const all = Object.keys(promised).filter((name) => !newer.includes(name));
  const inTurn = new InTurn({ env });
  after(() => inTurn[Symbol.asyncDispose]());
  for (const name of iterations(0, 1) === 1 ? all : few)
    test(`docs/examples/${name} prints what it promises`, { timeout: 60_000 }, () =>
      runInTurn(name, inTurn, env),
    );
});

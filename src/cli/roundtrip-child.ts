/** The child of the round trip: reads the parent's buffer, checks it, writes its own pattern. */
import { Socket } from 'node:net';
import { recordCalls } from '../../ffi/driver.ts';
import { bytesCopied } from '../../ffi/trace.ts';
import { Context } from '../context.ts';
import { parentPeer } from '../ipc/peer/spawn.ts';
import { explain } from '../ipc/sharing/explain.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { COPY_FD, countMismatches, pattern, type Reply, Request } from './roundtrip-messages.ts';
import { serveParent } from './serve-parent.ts';

const SAMPLE_LENGTH = 4;

const device = Number(process.argv[2] ?? 0);
const context = Context.primary(device);
const parent = parentPeer<unknown, Reply>();
let shared: DeviceBuffer | undefined;

const sampleOf = (buffer: DeviceBuffer): number[] =>
  Array.from(
    buffer.copyToHostSync(new Uint32Array(Math.min(SAMPLE_LENGTH, buffer.byteLength / 4))),
  );

function open(buffer: DeviceBuffer): Reply {
  recorder.stop();
  shared = buffer;
  const first = sampleOf(shared);
  return {
    type: 'opened',
    first,
    bytesCopied: bytesCopied(recorder.calls),
    freeBefore,
    freeAfter: context.memoryInfo().free,
  };
}

async function checkAndRewrite(): Promise<Reply> {
  if (!shared) throw new Error('nothing was opened yet');
  const elements = shared.byteLength / 4;
  const wrong = countMismatches('parent', await shared.copyToHost(new Uint32Array(elements)));
  await shared.copyFrom(pattern('child', elements));
  const first = sampleOf(shared);
  shared.close();
  await context.flush();
  return { type: 'checked', mismatches: wrong, first };
}

/** The way by copying: reads bytes from the pipe and copies them to the device. */
async function receive(byteLength: number): Promise<Reply> {
  const bytes = new Uint8Array(byteLength);
  let length = 0;
  for await (const chunk of new Socket({ fd: COPY_FD })) {
    bytes.set(chunk as Uint8Array, length);
    length += (chunk as Uint8Array).byteLength;
    if (length === byteLength) break;
  }
  using buffer = DeviceBuffer.allocate(byteLength, { context });
  await buffer.copyFrom(bytes);
  return { type: 'received', first: sampleOf(buffer) };
}

async function serve(message: unknown): Promise<Reply> {
  const request = Request.parse(message);
  if (request.type === 'open') return open(request.buffer);
  if (request.type === 'check') return checkAndRewrite();
  return receive(request.byteLength);
}

// Creates the context and loads zod now, so that the measured time excludes the start of a process.
const { free: freeBefore } = context.memoryInfo();
explain(undefined);
// Started now, because memory is opened as soon as it arrives.
const recorder = recordCalls();
await serveParent<unknown, Reply>(parent, { type: 'ready' }, serve, (message) => ({
  type: 'failed',
  message,
}));

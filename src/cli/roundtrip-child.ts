/** The child of the round trip: opens the parent's buffer, checks it, writes its own pattern. */
import { Socket } from 'node:net';
import { recordCalls } from '../../ffi/driver.ts';
import { bytesCopied } from '../../ffi/trace.ts';
import { Context } from '../context.ts';
import { openIpcBuffer } from '../ipc/import.ts';
import { DeviceBuffer } from '../memory/buffer.ts';
import { type Reply, Request } from './messages.ts';
import { mismatches, pattern } from './pattern.ts';

/** The descriptor on which the parent sends bytes when it copies instead of sharing. */
const COPY_FD = 4;
const FIRST = 4;

const device = Number(process.argv[2] ?? 0);
const context = Context.primary(device);
let shared: DeviceBuffer | undefined;

const reply = (message: Reply): void => {
  process.send?.(message);
};

const firstOf = (buffer: DeviceBuffer): number[] =>
  Array.from(buffer.copyToHostSync(new Uint32Array(Math.min(FIRST, buffer.byteLength / 4))));

function open(handle: unknown): Reply {
  const freeBefore = context.memoryInfo().free;
  const recorder = recordCalls();
  shared = openIpcBuffer(handle, { context });
  recorder.stop();
  const first = firstOf(shared);
  return {
    type: 'opened',
    first,
    bytesCopied: bytesCopied(recorder.calls),
    freeBefore,
    freeAfter: context.memoryInfo().free,
  };
}

async function answer(): Promise<Reply> {
  if (!shared) throw new Error('nothing was opened yet');
  const elements = shared.byteLength / 4;
  const wrong = mismatches('parent', await shared.copyToHost(new Uint32Array(elements)));
  await shared.copyFrom(pattern('child', elements));
  const first = firstOf(shared);
  shared.close();
  return { type: 'answered', mismatches: wrong, first };
}

/** The other way: bytes through a socket, then to the device. */
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
  return { type: 'received', first: firstOf(buffer) };
}

async function serve(message: unknown): Promise<void> {
  const request = Request.parse(message);
  if (request.type === 'open') reply(open(request.handle));
  else if (request.type === 'answer') reply(await answer());
  else if (request.type === 'receive') reply(await receive(request.byteLength));
  else process.disconnect();
}

process.on('message', (message) => {
  serve(message).catch((error: unknown) => {
    reply({ type: 'failed', message: String(error instanceof Error ? error.message : error) });
  });
});
// Pays for the context and for loading the checker now, so that the hand-over is timed and not
// the start of a process.
context.memoryInfo();
try {
  openIpcBuffer(undefined);
} catch {
  // nothing was sent yet
}
reply({ type: 'ready' });

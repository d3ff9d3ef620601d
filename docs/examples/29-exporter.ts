/**
 * One end of two programs that share memory and an event, and nothing else: run this with the path
 * of a file, and 29-importer.ts with the same.
 */
import { existsSync, renameSync, writeFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { CudaEvent, DeviceBuffer, Stream } from 'cuffi';
import { getIpcHandle } from 'cuffi/ipc';

const [, , path] = process.argv;
if (!path) throw new Error('which file?');

using stream = Stream.create({ nonBlocking: true });
using event = CudaEvent.create({ interprocess: true });
using buffer = DeviceBuffer.allocate(1 << 20);
buffer.fill(1, { stream });
event.record(stream);

const shared = { buffer: getIpcHandle(buffer), event: getIpcHandle(event) };
writeFileSync(`${path}.part`, JSON.stringify(shared));
renameSync(`${path}.part`, path);

// The memory must stay until the importer is done with it: that takes the file away.
const signal = AbortSignal.timeout(30_000);
while (existsSync(path)) await setTimeout(10, undefined, { signal });
await event.synchronize({ signal: AbortSignal.timeout(10_000) });
console.log('the exporter reads', new Set(await buffer.copyToHost()));

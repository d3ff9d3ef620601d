/** The other end of 29-exporter.ts: opens what that process shares, however it was started. */
import { existsSync, readFileSync, unlinkSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { Stream } from 'cuffi';
import { explain, openIpcBuffer, openIpcEvent } from 'cuffi/ipc';

const [, , path] = process.argv;
if (!path) throw new Error('which file?');
// The exporter may have failed: then this does, too.
const signal = AbortSignal.timeout(30_000);
while (!existsSync(path)) await setTimeout(10, undefined, { signal });
const shared = JSON.parse(readFileSync(path, 'utf8')) as { buffer: unknown; event: unknown };

const { openable, reason, hint } = explain(shared.buffer);
if (!openable) throw new Error(`${reason}. ${hint}`);

using stream = Stream.create({ nonBlocking: true });
using event = openIpcEvent(shared.event);
using buffer = openIpcBuffer(shared.buffer);
await event.synchronize({ signal: AbortSignal.timeout(10_000) });
console.log('the importer reads', new Set(await buffer.copyToHost()));

// Recorded here, waited for there.
buffer.fill(2, { stream });
event.record(stream);
unlinkSync(path);
await stream.synchronize();

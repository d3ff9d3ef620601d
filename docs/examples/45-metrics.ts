/** A program that is watched: counters as Prometheus reads them, of a peer, a pool and what others hold. */
import { subscribe } from 'node:diagnostics_channel';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { DeviceBuffer } from 'cuffi';
import { type DiagnosticMessages, leases, PeerPool, parentPeer } from 'cuffi/ipc';

if (process.argv[2] === 'worker') {
  await parentPeer<DeviceBuffer, number>().serve(
    (buffer, { closeAfter }) => closeAfter(buffer).byteLength,
  );
} else {
  // What has no counter is counted here. Where nobody subscribes, cuffi makes no message.
  let shared = 0;
  let slowest = 0;
  subscribe('cuffi:peer:send', (message) => {
    shared += (message as DiagnosticMessages['cuffi:peer:send']).sharedByteLength;
  });
  subscribe('cuffi:pool:task:end', (message) => {
    const { durationMs } = message as DiagnosticMessages['cuffi:pool:task:end'];
    slowest = Math.max(slowest, durationMs);
  });

  const pool = PeerPool.create<number, DeviceBuffer>({
    script: import.meta.filename,
    args: ['worker'],
    devices: [0],
  });
  const metrics = (): string => {
    const { completed, failed, restarts, queueSize } = pool.stats();
    const held = leases.stats();
    return Object.entries({
      'cuffi_tasks_total{result="done"}': completed,
      'cuffi_tasks_total{result="failed"}': failed,
      cuffi_worker_restarts_total: restarts,
      cuffi_queue_size: queueSize,
      cuffi_shared_bytes_total: shared,
      cuffi_held_bytes: held.byteLength,
      cuffi_held_objects: held.leases.length,
    })
      .map(([name, value]) => `${name} ${value}\n`)
      .join('');
  };
  const server = createServer((_, response) => {
    response.setHeader('content-type', 'text/plain; version=0.0.4').end(metrics());
  });
  await once(server.listen(0), 'listening');

  using buffer = DeviceBuffer.allocate(1 << 20);
  for (let n = 0; n < 3; n += 1) await pool.run(buffer);
  const answer = await fetch(`http://localhost:${(server.address() as AddressInfo).port}`);
  console.log(await answer.text());
  console.log('a task took some time:', slowest > 0);
  server.close();
  await pool.close();
}

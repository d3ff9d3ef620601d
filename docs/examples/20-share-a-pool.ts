/** A memory pool for two processes: its file descriptor goes once, then any number of buffers. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { Context, MemoryPool } from 'cuffi';
import { closeFd, readable, receiveMessage, sendMessage, socketPair } from 'cuffi/ffi';
import {
  decodeDescriptor,
  encodeDescriptor,
  exportIpc,
  openIpcBuffer,
  openIpcPool,
} from 'cuffi/ipc';

const CHILD_FD = 3;

async function receive() {
  await readable(CHILD_FD);
  const message = receiveMessage(CHILD_FD);
  if (message === undefined || message === 'end') throw new Error('nothing came');
  return { descriptor: decodeDescriptor(message.data), fds: message.fds };
}

if (process.argv[2] === 'child') {
  const first = await receive();
  using pool = openIpcPool(first.descriptor, { fds: first.fds });
  console.log(`the pool is another process's: ${pool.isMapped}`);
  try {
    pool.allocate();
  } catch (error) {
    console.log((error as Error).message);
  }
  for (let n = 0; n < 2; n += 1) {
    const { descriptor } = await receive();
    using buffer = openIpcBuffer(descriptor);
    console.log('the child reads', new Set(await buffer.copyToHost()));
    console.log(`of the pool: ${buffer.resource === pool}, mapped: ${buffer.isMapped}`);
    buffer.fill(n + 10);
    await Context.primary().synchronize();
  }
} else {
  using pool = MemoryPool.create({ maxSize: 64 << 20, shareable: true });
  using one = pool.allocate(1000);
  using two = pool.allocate(1 << 20);
  one.fill(1);
  two.fill(2);
  await Context.primary().synchronize(); // a descriptor carries no order

  const [here, there] = socketPair();
  const program = [...process.execArgv, import.meta.filename, 'child'];
  const child = spawn(process.execPath, program, {
    stdio: ['ignore', 'inherit', 'inherit', there],
  });
  closeFd(there);
  const { descriptor, fds } = exportIpc(pool);
  sendMessage(here, encodeDescriptor(descriptor), fds);
  for (const buffer of [one, two])
    sendMessage(here, encodeDescriptor(exportIpc(buffer).descriptor));
  await once(child, 'exit');
  closeFd(here);
  console.log('the parent reads', new Set(await one.copyToHost()), new Set(await two.copyToHost()));
}

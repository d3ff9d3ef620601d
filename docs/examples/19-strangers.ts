/** Two processes that did not start each other meet by a name. */
import { spawn } from 'node:child_process';
import { DeviceBuffer } from 'cuffi';
import { connect, listen } from 'cuffi/ipc';

const [, , role, name = `render-${process.pid}`] = process.argv;

if (role === 'renderer') {
  using display = await connect(name, { timeoutMs: 10_000 });
  using frame = DeviceBuffer.allocate(1 << 20);
  frame.fill(7);
  await frame.context.synchronize();
  await display.send({ width: 1024, height: 1024, frame });
  // Nothing but this process keeps the memory: until the other one is done with it.
  console.log('the display says', await display.receive());
} else {
  // A plain name is a socket that this user's processes alone can reach.
  using listener = listen(name);
  spawn(process.execPath, [...process.execArgv, import.meta.filename, 'renderer', name], {
    stdio: 'inherit',
  });
  using renderer = await listener.accept({ timeoutMs: 30_000 });
  console.log(`a process of user ${renderer.uid} connects`);
  const { width, frame } = (await renderer.receive()) as { width: number; frame: DeviceBuffer };
  console.log(`${width} wide, all of it`, new Set(await frame.copyToHost()));
  frame.close();
  await renderer.send('shown');
}

/** Which GPUs are here, and what they can share. */
import { Context, devices, driverVersion, isAvailable } from 'cuffi';
import { ipcSupport } from 'cuffi/ipc';

if (isAvailable()) {
  const { major, minor } = driverVersion();
  console.log(`CUDA ${major}.${minor}`);
  for (const device of devices()) {
    const { free, total } = Context.primary(device).memoryInfo();
    console.log(`${device.ordinal}: ${device.name} (${device.uuid})`);
    console.log(`   ${device.attribute('multiprocessorCount')} multiprocessors`);
    console.log(`   ${free} of ${total} bytes free`);
    for (const [what, { supported, reason }] of Object.entries(ipcSupport(device)))
      console.log(`   shares ${what}: ${supported ? 'yes' : `no, ${reason}`}`);
  }
} else {
  console.log('no GPU here');
}

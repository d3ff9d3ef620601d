/** Two GPUs: copies go over their link if they have one, and kernels use memory of the other one. */
import { Device, DeviceBuffer, VirtualMemory } from 'cuffi';

if (Device.count < 2) console.log('this needs a second GPU');
else await copyBetween();

async function copyBetween(): Promise<void> {
  using source = DeviceBuffer.allocate(1024, { device: 0 });
  using target = DeviceBuffer.allocate(1024, { device: 1 });
  for (const { device, link } of Device.get(0).topology())
    console.log(`0 reaches ${device.ordinal} by ${link}`);
  source.fill(5);
  source.copyTo(target);
  await source.context.synchronize();
  console.log('on the other device:', new Set(await target.copyToHost()));

  if (!Device.get(1).canAccessPeer(0)) return;
  using memory = VirtualMemory.reserve(1 << 20, { device: 0 });
  memory.allowAccess(1); // kernels of device 1 use it where it is
  console.log('device 1 may', memory.access(1));
}

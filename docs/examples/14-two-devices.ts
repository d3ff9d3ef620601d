/** Two GPUs: a copy between them goes over their link, where there is one. */
import { Device, DeviceBuffer } from 'cuffi';

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
}

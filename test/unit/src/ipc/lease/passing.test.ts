import assert from 'node:assert/strict';
import { closeSync } from 'node:fs';
import { test } from 'node:test';
import { selectDriver } from '../../../../../ffi/driver.ts';
import { DeviceBuffer } from '../../../../../src/index.ts';
import { passOn, rememberLender } from '../../../../../src/ipc/lease/passing.ts';
import { PeerProcess } from '../../../../../src/ipc/lease/peer-process.ts';
import { emulate } from '../../emulate.ts';

test('what goes back to its maker is not passed on; of other pid namespaces one is not another', () => {
  selectDriver(emulate());
  const here = PeerProcess.child(process.pid);
  const hidden = PeerProcess.known(0, 0);
  const other = PeerProcess.known(0, 0);
  const cases = [
    { from: here, to: PeerProcess.child(process.pid), kept: [] },
    { from: here, to: hidden, kept: [0] },
    { from: hidden, to: hidden, kept: [] },
    { from: hidden, to: other, kept: [0] },
  ];
  for (const { from, to, kept } of cases) {
    using buffer = DeviceBuffer.allocate(64);
    const asked: number[] = [];
    rememberLender(buffer.whole, {
      process: from,
      adopt(pid, _startTime, link) {
        asked.push(pid);
        closeSync(link);
        return { answered: Promise.resolve(), over() {} };
      },
    });
    const passing = passOn([buffer], to);
    for (const link of passing.links) closeSync(link);
    assert.deepEqual(passing.kept, kept);
    assert.deepEqual(asked, kept.length > 0 ? [to.pid] : []);
  }
});

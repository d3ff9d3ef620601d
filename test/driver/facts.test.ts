/** What drivers answer, compared with what the hardware answered; see facts/record.ts. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { emulated } from '../support/driver.ts';
import { contextFacts } from './facts/context.ts';
import { eventFacts } from './facts/event.ts';
import { collectFacts } from './facts/facts.ts';
import { ipcFacts } from './facts/ipc.ts';
import { graphFacts, kernelFacts } from './facts/kernel.ts';
import { memoryFacts } from './facts/memory.ts';
import { memoryKindFacts } from './facts/memory-kinds.ts';
import {
  compare,
  devices,
  isRecording,
  notEmulated,
  record,
  records,
  varying,
  write,
} from './facts/record.ts';
import { waitingFacts } from './facts/waiting.ts';

const groups = [
  contextFacts,
  memoryFacts,
  ipcFacts,
  eventFacts,
  waitingFacts,
  kernelFacts,
  graphFacts,
  ...memoryKindFacts,
];

describe('the facts of the driver', () => {
  test('the driver answers as the hardware did', {
    timeout: 240_000,
    skip:
      emulated &&
      !isRecording &&
      ((record === undefined && `no record of ${devices} devices`) ||
        (process.env['CUFFI_EMULATED_FOREIGN_CONTEXT'] && 'another context is current')),
  }, async (t) => {
    const facts = await collectFacts(groups);
    if (isRecording) return write((old) => ({ ...old, facts: Object.fromEntries(facts) }));
    t.diagnostic(`compared with ${record?.gpu}, driver ${record?.driver}, ${record?.date}`);
    compare(facts, record?.facts);
  });

  test('each name of what is not emulated, or varies, is that of a fact', () => {
    const names = Object.values(records).flatMap(({ facts, questions }) =>
      [facts, ...Object.values(questions)].flatMap((each) => Object.keys(each)),
    );
    for (const start of Object.keys({ ...notEmulated, ...varying }))
      assert.ok(
        names.some((name) => name.startsWith(start)),
        start,
      );
  });
});

/**
 * What drivers answer to questions that may crash the process that asks, or keep it for ever,
 * compared with what the hardware answered; see facts/asked.ts and facts/record.ts.
 */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { onHardware } from '../support/driver.ts';
import { endIdle, MANY } from './facts/asked.ts';
import { besideBlockingFacts, besideLegacyFacts, besideNonBlockingFacts } from './facts/beside.ts';
import {
  allowedInRelaxedFacts,
  besideCaptureFacts,
  brokenCaptureFacts,
  onceBetweenDevicesFacts,
  onceInGlobalFacts,
  onceInRelaxedFacts,
  onceInThreadLocalFacts,
  withinCaptureFacts,
} from './facts/captures.ts';
import { collectFacts, type FactGroup } from './facts/facts.ts';
import {
  depthFacts,
  earlyPoolFacts,
  graphMemoryFacts,
  lentEventFacts,
  pageableFacts,
  unmappedFacts,
  wrapFacts,
} from './facts/held.ts';
import { destroyedFacts, lostFacts, reuseFacts } from './facts/lost.ts';
import { queueFacts } from './facts/queues.ts';
import {
  borderFacts,
  elapsedFacts,
  freshFacts,
  overlapFacts,
  pitchFacts,
  registrationFacts,
} from './facts/ranges.ts';
import { compare, devices, isRecording, record, write } from './facts/record.ts';
import { openedElsewhereFacts, otherDeviceFacts } from './facts/two-devices.ts';

const groups: Readonly<Record<string, FactGroup>> = {
  'a lost context': lostFacts,
  'what was destroyed': destroyedFacts,
  'handles given out again': reuseFacts,
  'pageable copies in a held stream': pageableFacts,
  'the depth of a stream': depthFacts,
  'streams beside waiting ones': queueFacts,
  'calls beside a waiting non-blocking stream': besideNonBlockingFacts,
  'calls beside the waiting legacy stream': besideLegacyFacts,
  'calls beside a waiting blocking stream': besideBlockingFacts,
  'work beside a capture': besideCaptureFacts,
  'calls in a capture': withinCaptureFacts,
  'what a relaxed capture allows': allowedInRelaxedFacts,
  'a capture and first uses, global': onceInGlobalFacts,
  'a capture and first uses, of this thread': onceInThreadLocalFacts,
  'a capture and first uses, relaxed': onceInRelaxedFacts,
  'a broken capture': brokenCaptureFacts,
  'events of another process': lentEventFacts,
  'times between events': elapsedFacts,
  'registrations that share pages': registrationFacts,
  'copies over a border': borderFacts,
  'copies that overlap themselves': overlapFacts,
  'fresh memory': freshFacts,
  'memory unmapped under work': unmappedFacts,
  'memory of graphs': graphMemoryFacts,
  'pool memory of another process': earlyPoolFacts,
  'wide rows': pitchFacts,
  'wraps and exits': wrapFacts,
  ...(devices === '1'
    ? {}
    : {
        'a capture and first uses, two devices': onceBetweenDevicesFacts,
        'memory of another device': otherDeviceFacts,
        'handles opened on another device': openedElsewhereFacts,
      }),
};

// The emulated driver is asked for what the hardware has answered.
const asked = Object.entries(groups).filter(
  ([name]) => onHardware || isRecording || record?.questions[name] !== undefined,
);

// On hardware an answer may depend on how long a call takes.
describe('the questions', { concurrency: onHardware ? 1 : MANY }, () => {
  after(endIdle);
  for (const [name, group] of asked)
    test(`the driver answers as the hardware did: ${name}`, { timeout: 240_000 }, async () => {
      const facts = await collectFacts([group]);
      if (!isRecording) return compare(facts, record?.questions[name]);
      const found = Object.fromEntries(facts);
      write((old) => ({ ...old, questions: { ...old.questions, [name]: found } }));
    });
});

test('every answer on record is asked for', () => {
  const gone = Object.keys(record?.questions ?? {}).filter((name) => groups[name] === undefined);
  assert.deepEqual(gone, []);
});

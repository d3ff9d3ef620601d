import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  type Context,
  CudaEvent,
  DeviceBuffer,
  float32,
  fromBuffer,
} from '../../../../../src/index.ts';
import type { DescriptorFields } from '../../../../../src/ipc/descriptor.ts';
import { encodeFields } from '../../../../../src/ipc/descriptor-codec.ts';
import { leases, type Shareable } from '../../../../../src/ipc/index.ts';
import { exportEvent } from '../../../../../src/ipc/sharing/event.ts';
import {
  bufferOf,
  discardImported,
  isImported,
  isShareable,
  keepObject,
  ownerOf,
  rangeOf,
  type ShareableKind,
  shareableKinds,
} from '../../../../../src/ipc/sharing/kinds.ts';
import { emptySharingSession, exportForPeer } from '../../../../../src/ipc/sharing/marshal.ts';
import { openObject } from '../../../../../src/ipc/sharing/open.ts';
import { Resource } from '../../../../../src/lifetime.ts';
import { emulate } from '../../emulate.ts';
import { peerPair } from '../peer/support.ts';

/** An object of a kind that a later room could add: it travels as its event. */
class Ticket extends Resource {
  readonly event: CudaEvent;
  readonly context: Context;

  constructor(event: CudaEvent) {
    super('Ticket', { owner: event.context.resources, release: () => event.close() });
    this.event = event;
    this.context = event.context;
  }
}

const ticketKind: ShareableKind<Ticket> = {
  name: 'event',
  descriptorKinds: ['event'],
  isInstance: (object) => object instanceof Ticket,
  isImported: ({ event }) => event.imported,
  export: ({ event }) => ({ descriptor: exportEvent(event), fds: [] }),
  import: (descriptor, ...given) =>
    new Ticket(openObject(descriptor as DescriptorFields, ...given) as CudaEvent),
  discard: (ticket) => ticket.close(),
};

describe('shareableKinds', () => {
  test('an object of a kind that is added to the table travels over a connection', async () => {
    emulate();
    using ticket = new Ticket(CudaEvent.create({ interprocess: true }));
    const sent = ticket as unknown as Shareable;
    using pair = peerPair();
    assert.equal(isShareable(ticket), false);
    await assert.rejects(pair.a.send(ticket as unknown), {
      message: /value is a Ticket, which cannot be sent/,
    });
    shareableKinds.unshift(ticketKind);
    try {
      const exported = exportForPeer(ticket, emptySharingSession());
      assert.deepEqual(exported?.bytes, encodeFields(exportEvent(ticket.event)));
      await pair.a.send({ tickets: [ticket as unknown] });
      assert.deepEqual(
        leases.stats().leases.map(({ kind }) => kind),
        ['event'],
      );
      const { tickets } = (await pair.b.receive()) as { tickets: [Ticket] };
      const [received] = tickets;
      assert.ok(received instanceof Ticket);
      assert.equal(received.event.handle, ticket.event.handle);
      discardImported(received);
      assert.deepEqual([received.closed, ticket.closed], [true, false]);
      assert.deepEqual(
        [isShareable(ticket), bufferOf(ticket), rangeOf(sent)],
        [true, undefined, undefined],
      );
      await leases.drain({ timeoutMs: 5000 });
    } finally {
      shareableKinds.splice(shareableKinds.indexOf(ticketKind as ShareableKind), 1);
    }
  });

  test('what the table says of memory is that of its buffer, and nothing else can be shared', () => {
    emulate();
    using buffer = DeviceBuffer.allocate(256);
    const array = fromBuffer(buffer, 16, float32);
    for (const each of [buffer, array]) {
      const kept = keepObject(each, 'a test');
      kept.release();
      assert.equal(kept.kind, 'memory');
      assert.equal(bufferOf(each), buffer);
      assert.equal(kept.byteLength, 256);
      assert.equal(kept.owner, ownerOf(each));
      assert.deepEqual(kept.range, rangeOf(each));
      assert.equal(isImported(each), false);
    }
    assert.deepEqual(rangeOf(array), {
      begin: buffer.address,
      end: buffer.address + 64,
      access: 'read-write',
    });
    for (const other of [{}, [], buffer.context, new Map()]) {
      assert.equal(isShareable(other), false);
      assert.equal(bufferOf(other), undefined);
      assert.equal(isImported(other), false);
      discardImported(other);
    }
  });
});

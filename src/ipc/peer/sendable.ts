/** What can be sent: when a program runs, and as types, by which `send` refuses the rest when it is compiled. */

import { types } from 'node:util';
import type { DeviceArray } from '../../array/device-array.ts';
import type { Resource } from '../../lifetime.ts';
import { IpcHandle } from '../../memory/manager/memory-pointer.ts';
import { isShareable, type Shareable } from '../sharing/kinds.ts';
import { IpcArrayHandle, IpcMemoryHandle, ReadyExport } from '../sharing/memory-handle.ts';
import type { TransferableObjects } from '../wire/value-encoder.ts';

/** What may stand in a value besides plain data: whatever a row of the table of kinds includes. */
export const sendable: TransferableObjects<Shareable> = {
  includes: isShareable,
  alternativeTo(object) {
    if (types.isPromise(object)) return 'await it first';
    if (object instanceof IpcMemoryHandle)
      return (
        `send the ${object instanceof IpcArrayHandle ? 'array' : 'buffer'} itself, or toJSON() of ` +
        'this as data, which peer.open() opens there'
      );
    if (object instanceof ReadyExport) return 'send the memory itself, with { stream }';
    return object instanceof IpcHandle
      ? 'send the buffer itself'
      : 'only plain objects, arrays, Maps, Sets, Dates, errors, binary data, device arrays, ' +
          'buffers, pools and events are';
  },
};

// ---- Types ----

/** Sent as they are, or by reference. */
type Leaf =
  | string
  | number
  | bigint
  | boolean
  | null
  | undefined
  | Date
  | ArrayBuffer
  | ArrayBufferView
  | Error
  | Shareable
  | DeviceArray;

/** Has no meaning in another process, or none that is sent. */
type Bound =
  | Resource
  | WeakMap<WeakKey, unknown>
  | WeakSet<WeakKey>
  | WeakRef<WeakKey>
  | RegExp
  | URL
  | SharedArrayBuffer;

/**
 * `T` itself if it can be sent. Otherwise a type that `T` does not extend, with the reason as a text
 * where the part is that cannot be sent: a function, a symbol, a Promise and the like. An `unknown` or
 * `any` is only checked at run time.
 *
 * @example
 * function broadcast<T>(peers: Peer[], value: T & Sendable<T>) {
 *   return Promise.all(peers.map((peer) => peer.send(value)));
 * }
 */
export type Sendable<T> = unknown extends T
  ? T
  : T extends Leaf
    ? T
    : T extends ReadonlyMap<infer K, infer V>
      ? ReadonlyMap<Sendable<K>, Sendable<V>>
      : T extends ReadonlySet<infer M>
        ? ReadonlySet<Sendable<M>>
        : T extends symbol
          ? 'a symbol cannot be sent'
          : T extends ((...args: never) => unknown) | (abstract new (...args: never) => unknown)
            ? 'a function cannot be sent'
            : T extends PromiseLike<unknown>
              ? 'a Promise cannot be sent: await it first'
              : T extends Bound
                ? 'an object of this kind cannot be sent'
                : { readonly [K in keyof T]: Sendable<T[K]> };

/**
 * What a peer without types sends: everything {@link Sendable}. It is `any`, so that every typed peer
 * is a `Peer`, too.
 */
// biome-ignore lint/suspicious/noExplicitAny: nothing else is both above and below every type
export type Anything = any;

/** What `send` of a peer takes: what it was typed for, or anything that can be sent. */
export type Outgoing<Sends, V> = unknown extends Sends ? V & Sendable<V> : Sends & Sendable<Sends>;

/** What a handler may return. */
export type Answer<Sends> = unknown extends Sends ? unknown : Sends | PromiseLike<Sends>;

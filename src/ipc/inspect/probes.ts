/**
 * Tries each kind of sharing between two processes: one offers an object of each kind, the other
 * opens it, checks what is in it and writes back.
 */

import { Context, isPrimaryOpen } from '../../context.ts';
import type { WaitOptions } from '../../deadline.ts';
import { type Device, devices } from '../../device.ts';
import { isInitialized } from '../../driver.ts';
import { CuffiError } from '../../errors.ts';
import { assertNotCapturing } from '../../graph-capture.ts';
import { runAll } from '../../lifetime.ts';
import { messageOf } from '../../validate.ts';
import { leases } from '../lease/leases.ts';
import type { Peer } from '../peer/peer.ts';
import { capabilityBlocker } from '../sharing/blockers.ts';
import type { Probe } from '../sharing/kind.ts';
import { kinds, type Shareable } from '../sharing/kinds.ts';
import { hasAnswer } from '../sharing/memory.ts';

/** What is tried, in this order. */
export const PROBES: readonly Probe[] = kinds.flatMap(({ probes }) => probes ?? []);

/** How one probe ended. */
export interface ProbeResult {
  readonly name: string;
  readonly ok: boolean;
  /** From the allocation in one process until the other has checked the contents. */
  readonly ms: number | undefined;
  /** The code of the error, if it failed with one. */
  readonly code: string | undefined;
  /** Why it failed; empty if it did not. */
  readonly reason: string;
}

/** What the offering process sends. */
type Offer =
  | { readonly probe: string; readonly step: 'begin' }
  | { readonly probe: string; readonly step: 'object'; readonly object: object }
  | { readonly probe: string; readonly step: 'end'; readonly isWrittenBack: boolean }
  | {
      readonly probe: string;
      readonly step: 'failed';
      readonly code: string;
      readonly message: string;
    }
  | { readonly step: 'done'; readonly reason: string };

const STEP_TIMEOUT_MS = 5000;
const MAX_MESSAGE_LENGTH = 1000;

// ---- The process that offers ----

/**
 * Offers an object of each kind to a process that runs {@link takeProbes}. Receives nothing from it.
 * Never rejects: the other process may end at any time.
 *
 * @param device default: the first device whose primary context is open. None is opened
 */
export async function offerProbes(peer: Peer, device?: Device): Promise<void> {
  const { signal, end } = signalOfEnd(peer);
  const wait = { timeoutMs: STEP_TIMEOUT_MS, signal };
  const send = (offer: Offer): Promise<void> => peer.send(offer, wait);
  try {
    const used = device ?? deviceInUse();
    if (used === undefined) {
      await send({ step: 'done', reason: 'that process has not used a GPU yet' });
      return;
    }
    assertNotCapturing('probing');
    for (const probe of PROBES) {
      await send({ probe: probe.name, step: 'begin' });
      await offerOne(probe, Context.primary(used), send, wait);
    }
    await send({ step: 'done', reason: '' });
  } catch {
    // The other process has ended, or does not read: it reports what is missing.
  } finally {
    end();
  }
}

/** A signal that aborts when the connection ends, so that nothing waits for a process that left. */
function signalOfEnd(peer: Peer): { readonly signal: AbortSignal; readonly end: () => void } {
  const controller = new AbortController();
  void peer.ended.then((reason) => controller.abort(reason));
  return { signal: controller.signal, end: () => controller.abort() };
}

function deviceInUse(): Device | undefined {
  return isInitialized() ? devices().find(isPrimaryOpen) : undefined;
}

/** @throws what `send` throws */
async function offerOne(
  { name: probe, capability, make }: Probe,
  context: Context,
  send: (offer: Offer) => Promise<void>,
  wait: WaitOptions,
): Promise<void> {
  const failed = (code: string, message: string): Promise<void> =>
    send({ probe, step: 'failed', code, message });
  const blocker = capability && capabilityBlocker(context.device, capability);
  if (blocker) {
    await failed(blocker.code, `${blocker.reason}. ${blocker.hint}`);
    return;
  }
  let isWrittenBack: boolean;
  try {
    using offered = await make(context);
    await send({ probe, step: 'object', object: offered.object });
    await leases.returned(offered.object as Shareable, wait);
    const { writable } = offered;
    isWrittenBack = writable === undefined || (await hasAnswer(writable));
  } catch (error) {
    await failed(codeOf(error), limitedMessageOf(error));
    return;
  }
  await send({ probe, step: 'end', isWrittenBack });
}

// ---- The process that opens ----

/** The results of all probes, and why there are none. */
export interface ProbeReport {
  readonly results: readonly ProbeResult[];
  /** Why the other process offered nothing, or stopped; empty if all were tried. */
  readonly reason: string;
}

/**
 * Opens what a process offers with {@link offerProbes}, checks it and writes back. What arrives is
 * checked: the other process may send anything. Never rejects.
 */
export async function takeProbes(peer: Peer): Promise<ProbeReport> {
  const results: ProbeResult[] = [];
  let current: string | undefined;
  let begun = 0;
  let checked: { readonly ms: number; readonly fault: string } | undefined;
  let refused: { readonly code: string; readonly reason: string } | undefined;
  const settle = (name: string, result: Omit<ProbeResult, 'name'>): void => {
    results.push({ name, ...result });
    current = undefined;
  };
  for (;;) {
    let offer: Offer | undefined;
    try {
      offer = checkOffer(await peer.receive({ timeoutMs: 2 * STEP_TIMEOUT_MS }), current);
    } catch (error) {
      // An object that cannot be opened ends its probe only.
      const isRefused = !peer.closed && current !== undefined && !isTimeout(error) && !isEnd(error);
      if (!isRefused) return { results, reason: limitedMessageOf(error) };
      refused = { code: codeOf(error), reason: limitedMessageOf(error) };
      continue;
    }
    if (offer === undefined)
      return { results, reason: 'the other process sent an invalid message' };
    switch (offer.step) {
      case 'done':
        return { results, reason: offer.reason };
      case 'begin':
        if (results.length >= PROBES.length)
          return { results, reason: 'the other process sent too many probes' };
        current = offer.probe;
        begun = performance.now();
        checked = undefined;
        refused = undefined;
        break;
      case 'object': {
        const fault = await checkObject(offer.probe, offer.object);
        checked = { ms: performance.now() - begun, fault };
        break;
      }
      case 'failed':
        settle(offer.probe, {
          ok: false,
          ms: undefined,
          code: refused?.code ?? offer.code,
          reason: refused?.reason ?? offer.message,
        });
        break;
      case 'end': {
        const { ms, fault } = checked ?? { ms: undefined, fault: 'it did not arrive' };
        const reason =
          refused?.reason ||
          fault ||
          (offer.isWrittenBack ? '' : 'data written here did not reach the other process');
        settle(offer.probe, { ok: reason === '', ms, code: refused?.code, reason });
        break;
      }
    }
  }
}

/** Checks one object, and closes it. Returns what is wrong with it. */
async function checkObject(name: string, object: object): Promise<string> {
  try {
    const probe = PROBES.find((known) => known.name === name) as Probe;
    return await probe.check(object, STEP_TIMEOUT_MS);
  } catch (error) {
    return limitedMessageOf(error);
  } finally {
    const { close } = object as { close?: unknown };
    if (typeof close === 'function') runAll([() => (object as Shareable).close()]);
  }
}

/** Returns a message of the right shape, for the probe that runs; undefined for anything else. */
function checkOffer(value: unknown, current: string | undefined): Offer | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  const offer = value as Record<string, unknown>;
  const { step, probe } = offer;
  if (step === 'done') return { step, reason: textOf(offer['reason']) };
  const name = PROBES.find((known) => known.name === probe)?.name;
  if (name === undefined || (step === 'begin') !== (current === undefined)) return undefined;
  if (step === 'begin') return { probe: name, step };
  if (name !== current) return undefined;
  const { object, isWrittenBack } = offer;
  if (step === 'object' && typeof object === 'object' && object !== null)
    return { probe: name, step, object };
  if (step === 'end') return { probe: name, step, isWrittenBack: isWrittenBack === true };
  if (step === 'failed')
    return { probe: name, step, code: textOf(offer['code']), message: textOf(offer['message']) };
  return undefined;
}

const textOf = (value: unknown): string =>
  typeof value === 'string' ? value.slice(0, MAX_MESSAGE_LENGTH) : '';

const limitedMessageOf = (error: unknown): string => messageOf(error).slice(0, MAX_MESSAGE_LENGTH);

const codeOf = (error: unknown): string => (error instanceof CuffiError ? error.code : 'failed');

const isTimeout = (error: unknown): boolean =>
  error instanceof DOMException && error.name === 'TimeoutError';

const isEnd = (error: unknown): boolean =>
  error instanceof CuffiError && (error.code === 'closed' || error.code === 'peer-gone');

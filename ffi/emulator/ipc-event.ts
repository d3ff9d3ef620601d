/** Interprocess events: their handles, and opening those of other processes. */
import { closeSync } from 'node:fs';
import { CU_EVENT_DISABLE_TIMING, CU_EVENT_INTERPROCESS } from '../constants.ts';
import type { Driver } from '../functions.ts';
import { SystemError } from '../linux/libc.ts';
import { CUresult, type CUresult as Status } from '../results.ts';
import type { Contexts } from './context.ts';
import type { Events } from './event.ts';
import {
  EVENT_COUNT,
  EVENT_PAGE_BYTE_LENGTH,
  EVENTS_NAME,
  EventPage,
  type EventState,
  LocalEventState,
  SharedEventState,
} from './event-state.ts';
import type { HostMemory } from './host-memory.ts';
import { decodeIpcHandle, encodeIpcHandle, type IpcHandleFields } from './ipc-handle.ts';
import { rejectionStatus } from './ipc-memory.ts';
import { openForeignMemfd, type ProcessIdentity } from './processes.ts';

const {
  CUDA_SUCCESS,
  CUDA_ERROR_INVALID_VALUE,
  CUDA_ERROR_INVALID_CONTEXT,
  CUDA_ERROR_INVALID_HANDLE,
  CUDA_ERROR_MAP_FAILED,
} = CUresult;

/** A page of another process. It is mapped while any of its events is open. */
interface ForeignPage {
  readonly page: EventPage;
  openCount: number;
}

/** The interprocess events that this process created or opened. */
export class InterprocessEvents {
  readonly #self: ProcessIdentity;
  /** Created with the first event, and kept. */
  #own: { readonly page: EventPage; readonly fd: number } | undefined;
  /** Slots are reused as late as possible, so that stale handles are noticed. */
  readonly #freeSlots = Array.from({ length: EVENT_COUNT }, (_, slot) => slot);
  #lastId = 0;
  readonly #fields = new WeakMap<EventState, IpcHandleFields>();
  readonly #foreign = new Map<string, ForeignPage>();

  constructor(self: ProcessIdentity) {
    this.#self = self;
  }

  /** Undefined if the process has the maximum number of events. */
  create(): EventState | undefined {
    const own = this.#ownPage();
    const slot = own && this.#freeSlots.shift();
    if (!own || slot === undefined) return undefined;
    this.#lastId += 1;
    const id = this.#lastId;
    const { page, fd } = own;
    page.setIdAt(slot, id);
    const state = new SharedEventState(page, slot, id, () => {
      page.setIdAt(slot, 0);
      this.#freeSlots.push(slot);
    });
    this.#fields.set(state, {
      kind: 'event',
      pid: this.#self.pid,
      startTime: this.#self.startTime,
      fd,
      generation: page.generation,
      offset: slot,
      byteLength: 0,
      blockByteLength: EVENT_PAGE_BYTE_LENGTH,
      id,
    });
    return state;
  }

  /**
   * The fields of the event's IPC handle. Undefined if this process did not create it as
   * interprocess.
   */
  fieldsOf(state: EventState): IpcHandleFields | undefined {
    return this.#fields.get(state);
  }

  /** Opens an event of another process. Returns its state, or the status of the failure. */
  open(fields: IpcHandleFields): EventState | Status {
    const refused = rejectionStatus(this.#self, fields);
    if (refused === CUDA_ERROR_INVALID_CONTEXT) return refused;
    const { offset: slot, id, generation } = fields;
    if (slot >= EVENT_COUNT) return CUDA_ERROR_INVALID_VALUE;
    const foreign = this.#foreign.get(generation) ?? this.#map(fields);
    // The driver also opens an event of a process that has ended. Its page is gone, so nobody else
    // can record this event.
    if (!foreign) return refused ? new LocalEventState() : CUDA_ERROR_INVALID_VALUE;
    if (foreign.page.idAt(slot) !== id) {
      this.#unmapUnused(generation, foreign);
      return CUDA_ERROR_INVALID_HANDLE;
    }
    foreign.openCount += 1;
    return new SharedEventState(foreign.page, slot, id, () => {
      foreign.openCount -= 1;
      this.#unmapUnused(generation, foreign);
    });
  }

  #ownPage(): { readonly page: EventPage; readonly fd: number } | undefined {
    try {
      this.#own ??= EventPage.create();
    } catch (error) {
      if (!(error instanceof SystemError)) throw error;
    }
    return this.#own;
  }

  #map(fields: IpcHandleFields): ForeignPage | undefined {
    const fd = openForeignMemfd(fields, EVENTS_NAME, EVENT_PAGE_BYTE_LENGTH);
    if (fd === undefined) return undefined;
    let page: EventPage;
    try {
      page = new EventPage(fd);
    } catch (error) {
      if (error instanceof SystemError) return undefined;
      throw error;
    } finally {
      closeSync(fd);
    }
    if (!page.isValid || page.generation !== fields.generation) {
      page.unmap();
      return undefined;
    }
    const foreign = { page, openCount: 0 };
    this.#foreign.set(fields.generation, foreign);
    return foreign;
  }

  #unmapUnused(generation: string, foreign: ForeignPage): void {
    if (foreign.openCount > 0) return;
    this.#foreign.delete(generation);
    foreign.page.unmap();
  }
}

type IpcEventFunctions = Pick<Driver, 'cuIpcGetEventHandle' | 'cuIpcOpenEventHandle'>;

export const ipcEventFunctions = (
  events: Events,
  interprocess: InterprocessEvents,
  contexts: Contexts,
  host: HostMemory,
): IpcEventFunctions => ({
  cuIpcGetEventHandle(out, handle) {
    const event = events.get(handle);
    const fields = event && interprocess.fieldsOf(event.state);
    if (!fields) return CUDA_ERROR_INVALID_HANDLE;
    return host.write(out, encodeIpcHandle(fields)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  },
  cuIpcOpenEventHandle(out, handle) {
    const fields = decodeIpcHandle('event', handle);
    if (!fields) return CUDA_ERROR_MAP_FAILED;
    const state = interprocess.open(fields);
    if (typeof state === 'number') return state;
    const flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    host.setUint64(out, events.add(contexts.current, flags, state).handle);
    return CUDA_SUCCESS;
  },
});

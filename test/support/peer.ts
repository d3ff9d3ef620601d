/** The program of a Peer: makes each driver call that it is sent, and answers with the outcome. */
import type { FunctionName } from '../../ffi/functions.ts';
import { type Argument, callHere } from './calls.ts';
import { LatchWord } from './latch.ts';

let word: LatchWord | undefined;

process.on('message', (message: { name?: FunctionName; args?: Argument[]; latch?: boolean }) => {
  if (message.latch) {
    word = LatchWord.create();
    const { address, byteLength } = word.mapping;
    callHere('cuMemHostRegister_v2', [address, byteLength, 3]);
    const { out0 } = callHere('cuMemHostGetDevicePointer_v2', ['OUT0', address, 0]);
    process.send?.({ fd: word.fd, devicePointer: out0 });
  } else if (message.name) {
    const answer = callHere(message.name, message.args ?? []);
    process.send?.({ ...answer, latchOpen: word?.isOpen });
  }
});

/** What this process has mapped, as /proc/self/maps says. */
import { closeSync, openSync, readSync } from 'node:fs';

/** A mapping of this process. */
export interface ProcessMapping {
  readonly isReadable: boolean;
  readonly isWritable: boolean;
  readonly isPrivate: boolean;
  /** Empty for anonymous memory. */
  readonly path: string;
}

const LINE = /^([\da-f]+)-([\da-f]+) (.)(.).(.) \S+ \S+ \S+ *(.*)$/gm;

/** Whether all of a range is mapped, each part of it by a mapping that fits. */
export function isMappedBy(
  address: number,
  byteLength: number,
  isFit: (mapping: ProcessMapping) => boolean,
): boolean {
  // All below this address fits. The mappings come in the order of their addresses.
  let reached = address;
  for (const { begin, end, mapping } of processMappings()) {
    if (end <= reached) continue;
    if (begin > reached || !isFit(mapping)) return false;
    reached = end;
    if (reached >= address + byteLength) return true;
  }
  return false;
}

/** Whether any mapping fits. */
export function hasMapping(isFit: (mapping: ProcessMapping) => boolean): boolean {
  for (const { mapping } of processMappings()) if (isFit(mapping)) return true;
  return false;
}

/** The kernel composes the lines when they are read: a caller that has seen enough spares it the rest. */
function* processMappings(): Generator<{
  readonly begin: number;
  readonly end: number;
  readonly mapping: ProcessMapping;
}> {
  const fd = openSync('/proc/self/maps', 'r');
  try {
    let text = '';
    for (;;) {
      const length = readSync(fd, part);
      if (length === 0) return;
      text += part.toString('latin1', 0, length);
      const whole = text.lastIndexOf('\n') + 1;
      for (const [, begin = '', end = '', read, write, shared, path = ''] of text
        .slice(0, whole)
        .matchAll(LINE))
        yield {
          begin: Number.parseInt(begin, 16),
          end: Number.parseInt(end, 16),
          mapping: {
            isReadable: read === 'r',
            isWritable: write === 'w',
            isPrivate: shared === 'p',
            path,
          },
        };
      text = text.slice(whole);
    }
  } finally {
    closeSync(fd);
  }
}

const part = Buffer.alloc(4096);

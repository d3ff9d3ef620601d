/** Safetensors files as bytes, right and wrong ones. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** A tensor of a file. */
export interface TestTensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly bytes: Uint8Array;
}

/** Returns the bytes of a file: the size of the header, the header, and the bytes of tensors. */
export function fileBytes(header: string | Uint8Array, data: Uint8Array = Buffer.alloc(0)): Buffer {
  const text = Buffer.from(header);
  const prefix = Buffer.alloc(8);
  prefix.writeBigUInt64LE(BigInt(text.byteLength));
  return Buffer.concat([prefix, text, data]);
}

/** Returns the bytes of a file with these tensors, one after the other. */
export function tensorFile(
  tensors: Readonly<Record<string, TestTensor>>,
  metadata?: Readonly<Record<string, string>>,
): Buffer {
  let offset = 0;
  const members = Object.entries(tensors).map(([name, { dtype, shape, bytes }]) => {
    const data_offsets = [offset, offset + bytes.byteLength];
    offset += bytes.byteLength;
    return `${JSON.stringify(name)}:${JSON.stringify({ dtype, shape, data_offsets })}`;
  });
  if (metadata) members.unshift(`"__metadata__":${JSON.stringify(metadata)}`);
  return fileBytes(
    `{${members.join(',')}}`,
    Buffer.concat(Object.values(tensors).map(({ bytes }) => bytes)),
  );
}

/** Bytes without a period: what is at the wrong place is seen. */
export const someBytes = (byteLength: number, first = 1): Uint8Array =>
  Uint8Array.from({ length: byteLength }, (_, n) => Math.imul(first + n, 0x9e3779b1) >>> 24);

/** A folder for the files of a test. */
export class TestFolder implements Disposable {
  readonly path: string = mkdtempSync(join(tmpdir(), 'cuffi-tensors-'));

  /** Writes a file, and returns its path. */
  write(name: string, bytes: string | Uint8Array): string {
    const path = join(this.path, name);
    writeFileSync(path, bytes);
    return path;
  }

  [Symbol.dispose](): void {
    rmSync(this.path, { recursive: true });
  }
}

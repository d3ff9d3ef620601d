/** The layers as a table: for a file of every room, imports that are refused and allowed. */

/** What a file may import, and what it may not. */
interface PlantedImports {
  readonly file: string;
  readonly refused: readonly string[];
  readonly allowed: readonly string[];
}

/** A file for every room, at more than one depth where that matters. */
export const plantedImports: readonly PlantedImports[] = [
  {
    file: 'ffi/a.ts',
    refused: [
      '../src/errors.ts',
      '../src/memory/buffer.ts',
      '../test/support/x.ts',
      '../bench/x.ts',
      '../docs/examples/x.ts',
      './emulator/index.ts',
      './emulator/memory.ts',
      './index.ts',
      'zod',
      'zod/mini',
      'cuffi',
      'cuffi/ffi',
    ],
    allowed: ['koffi', './types.ts', 'node:fs'],
  },
  {
    file: 'ffi/index.ts',
    refused: ['../src/errors.ts', './emulator/index.ts'],
    allowed: ['./types.ts'],
  },
  {
    file: 'ffi/emulator/a.ts',
    refused: ['../../src/errors.ts', '../index.ts', './index.ts', 'zod', 'cuffi/ffi'],
    allowed: ['../types.ts', './memory.ts'],
  },
  {
    file: 'src/a.ts',
    refused: [
      './waits/wake-up.ts',
      './context.ts',
      './event.ts',
      './memory/buffer.ts',
      './kernel/launch.ts',
      './array/array.ts',
      './ipc/handle.ts',
      './cli/main.ts',
      './index.ts',
      '../ffi/index.ts',
      '../ffi/emulator/index.ts',
      '../ffi/emulator/memory.ts',
      '../test/support/x.ts',
      'koffi',
      'koffi/indirect.js',
      'zod',
      'cuffi',
    ],
    allowed: ['./errors.ts', '../ffi/types.ts'],
  },
  {
    file: 'src/waits/a.ts',
    refused: ['../context.ts', '../stream.ts', '../memory/buffer.ts', '../ipc/protocol.ts'],
    allowed: ['./wake-up.ts', '../poller.ts', '../../ffi/types.ts'],
  },
  {
    file: 'src/context.ts',
    refused: ['./internal-event.ts', './stream.ts', './memory/buffer.ts', './ipc/protocol.ts'],
    allowed: ['./waits/wake-up.ts', './poller.ts'],
  },
  {
    file: 'src/index.ts',
    refused: ['./ipc/handle.ts', './cli/main.ts', 'koffi', 'zod', '../ffi/emulator/index.ts'],
    allowed: ['./errors.ts', './memory/buffer.ts', './kernel/launch.ts', './array/array.ts'],
  },
  {
    file: 'src/memory/a.ts',
    refused: [
      '../kernel/launch.ts',
      '../array/array.ts',
      '../ipc/handle.ts',
      '../cli/main.ts',
      '../index.ts',
      '../../ffi/index.ts',
      '../../ffi/emulator/memory.ts',
      '../../test/support/x.ts',
      'koffi',
      'zod',
    ],
    allowed: ['./buffer.ts', '../errors.ts', '../../ffi/types.ts'],
  },
  {
    file: 'src/memory/deeper/a.ts',
    refused: ['../../kernel/launch.ts', '../../index.ts', '../../../ffi/emulator/memory.ts'],
    allowed: ['../buffer.ts', '../../errors.ts', '../../../ffi/types.ts'],
  },
  {
    file: 'src/kernel/a.ts',
    refused: [
      '../array/array.ts',
      '../ipc/handle.ts',
      '../cli/main.ts',
      '../index.ts',
      'koffi',
      'zod',
    ],
    allowed: ['./launch.ts', '../memory/buffer.ts', '../errors.ts', '../../ffi/types.ts'],
  },
  {
    file: 'src/array/a.ts',
    refused: ['../ipc/handle.ts', '../cli/main.ts', '../memory/index.ts', 'koffi', 'zod'],
    allowed: ['./array.ts', '../kernel/launch.ts', '../memory/buffer.ts', '../../ffi/types.ts'],
  },
  {
    file: 'src/ipc/a.ts',
    refused: [
      '../cli/main.ts',
      './index.ts',
      '../index.ts',
      '../../ffi/emulator/memory.ts',
      'koffi',
      'zod',
    ],
    allowed: ['./handle.ts', '../array/array.ts', '../kernel/launch.ts', '../errors.ts'],
  },
  {
    file: 'src/ipc/zod.ts',
    refused: ['koffi'],
    allowed: ['zod'],
  },
  {
    file: 'src/ipc/index.ts',
    refused: ['../cli/main.ts', 'koffi'],
    allowed: ['./handle.ts'],
  },
  {
    file: 'src/tensors/a.ts',
    refused: ['../cli/main.ts', './index.ts', '../ipc/index.ts', 'cuffi', 'koffi', 'zod'],
    allowed: ['./header.ts', '../ipc/bytes.ts', '../array/layout.ts', '../../ffi/types.ts'],
  },
  {
    file: 'src/cli/a.ts',
    refused: [
      '../ipc/index.ts',
      '../../test/support/x.ts',
      '../../bench/x.ts',
      'cuffi',
      'koffi',
      'zod',
    ],
    allowed: ['./main.ts', '../ipc/handle.ts', '../memory/buffer.ts', '../../ffi/types.ts'],
  },
  {
    file: 'test/unit/a.ts',
    refused: ['../../bench/x.ts', '../../docs/examples/x.ts', 'cuffi', 'cuffi/ipc', 'koffi'],
    allowed: [
      '../support/x.ts',
      '../../src/index.ts',
      '../../src/ipc/index.ts',
      '../../ffi/index.ts',
      '../../ffi/emulator/index.ts',
      'fast-check',
    ],
  },
  {
    file: 'test/unit/ffi/a.ts',
    refused: ['../../../bench/x.ts', 'cuffi/ffi'],
    allowed: ['koffi', '../../../ffi/types.ts'],
  },
  {
    file: 'bench/a.ts',
    refused: [
      '../src/errors.ts',
      '../src/index.ts',
      '../ffi/types.ts',
      '../docs/examples/x.ts',
      'koffi',
    ],
    allowed: ['cuffi', 'cuffi/ipc', 'cuffi/ffi', './x.ts'],
  },
  {
    file: 'bench/cases/a.ts',
    refused: ['../../src/memory/buffer.ts', '../../ffi/index.ts', '../../dist/src/index.js'],
    allowed: ['cuffi', 'cuffi/ffi', '../x.ts'],
  },
  {
    file: 'docs/examples/a.ts',
    refused: [
      '../../src/index.ts',
      '../../ffi/index.ts',
      '../../test/support/x.ts',
      '../../bench/x.ts',
    ],
    allowed: ['cuffi', 'cuffi/ipc', 'cuffi/ffi', './x.ts', 'node:fs'],
  },
];

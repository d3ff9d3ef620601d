// The rows of libnvrtc against nvrtc.h, as a C compiler reads it.
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { describe, test } from 'node:test';
import { type NvrtcFunction, nvrtcRows } from '../../ffi/nvrtc.ts';
import { nvrtcCandidates } from '../../ffi/nvrtc-places.ts';
import { parameters } from './facts.ts';
import { noCompiler, openBuildFolder } from './toolchain.ts';

/** The folder of the header that lies beside a libnvrtc, undefined where there is missing. */
const folder = nvrtcCandidates()
  .filter((path) => path.includes('/'))
  .map((path) => join(dirname(dirname(path)), 'include'))
  .find((include) => existsSync(join(include, 'nvrtc.h')));

const skip = (folder === undefined && 'no nvrtc.h beside a libnvrtc') || noCompiler;

describe('nvrtcRows', () => {
  test('every row has exactly the type that nvrtc.h declares', { skip }, () => {
    const names = Object.keys(nvrtcRows) as NvrtcFunction[];
    const asks = names.map(
      (name) => `
  printf("${name} %d\\n", __builtin_types_compatible_p(
    __typeof__(&${name}), nvrtcResult (*)(${parameters(nvrtcRows[name])})));`,
    );
    const source = `#include <nvrtc.h>\n#include <stdio.h>\nint main(void) {${asks.join('')}\n  return 0;\n}\n`;
    // Only the types are asked for: nothing of the library is linked.
    const printed = openBuildFolder().run('nvrtc', source, ['-I', folder as string]);
    assert.equal(printed, names.map((name) => `${name} 1\n`).join(''));
  });
});

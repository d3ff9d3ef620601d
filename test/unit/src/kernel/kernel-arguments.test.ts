/** The bytes that a launch writes for its arguments. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { viewMemory } from '../../../../ffi/native.ts';
import type { Address } from '../../../../ffi/types.ts';
import { Context, DeviceBuffer } from '../../../../src/index.ts';
import { KernelArguments, type Parameter } from '../../../../src/kernel/kernel-arguments.ts';
import { emulate } from '../emulate.ts';

/** Values of each type, with their bytes in C on a little-endian machine. */
const VALUES: readonly (readonly [
  Parameter,
  byteLength: number,
  [value: unknown, hex: string][],
])[] = [
  [
    'bool',
    1,
    [
      [true, '01'],
      [false, '00'],
    ],
  ],
  [
    'int8',
    1,
    [
      [-128, '80'],
      [127, '7f'],
      [-1, 'ff'],
      [0, '00'],
    ],
  ],
  [
    'uint8',
    1,
    [
      [255, 'ff'],
      [0, '00'],
    ],
  ],
  [
    'int16',
    2,
    [
      [-2, 'feff'],
      [-32_768, '0080'],
      [32_767, 'ff7f'],
      [0, '0000'],
    ],
  ],
  [
    'uint16',
    2,
    [
      [0xabcd, 'cdab'],
      [65_535, 'ffff'],
      [0, '0000'],
    ],
  ],
  [
    'int32',
    4,
    [
      [-2, 'feffffff'],
      [-(2 ** 31), '00000080'],
      [2 ** 31 - 1, 'ffffff7f'],
    ],
  ],
  [
    'uint32',
    4,
    [
      [0xfedc_ba98, '98badcfe'],
      [2 ** 32 - 1, 'ffffffff'],
      [0, '00000000'],
    ],
  ],
  [
    'int64',
    8,
    [
      [-2, 'feffffffffffffff'],
      [-2n, 'feffffffffffffff'],
      [-(2n ** 63n), '0000000000000080'],
      [2n ** 63n - 1n, 'ffffffffffffff7f'],
      [-(2 ** 53 - 1), '010000000000e0ff'],
      [-(2 ** 32), '00000000ffffffff'],
      [0x1_2345_6789, '8967452301000000'],
      [0, '0000000000000000'],
    ],
  ],
  [
    'uint64',
    8,
    [
      [2n ** 64n - 1n, 'ffffffffffffffff'],
      [2 ** 53 - 1, 'ffffffffffff1f00'],
      [0x1_2345_6789, '8967452301000000'],
      [0n, '0000000000000000'],
    ],
  ],
  // 1 + 1/128 needs eight bits of mantissa: bfloat16 has seven, float16 ten.
  [
    'float16',
    2,
    [
      [1.5, '003e'],
      [1 + 1 / 128, '083c'],
      [-2, '00c0'],
      [Infinity, '007c'],
    ],
  ],
  [
    'bfloat16',
    2,
    [
      [1.5, 'c03f'],
      [1 + 1 / 128, '813f'],
      [-2, '00c0'],
      [Infinity, '807f'],
    ],
  ],
  [
    'float32',
    4,
    [
      [1.5, '0000c03f'],
      [-0, '00000080'],
      [0.1, 'cdcccc3d'],
    ],
  ],
  [
    'float64',
    8,
    [
      [1.5, '000000000000f83f'],
      [0.1, '9a9999999999b93f'],
    ],
  ],
  ...(['pointer', 'float32*', 'int8*'] as const).map((type): (typeof VALUES)[number] => [
    type,
    8,
    [
      [0x7f01_2345_6789, '89674523017f0000'],
      [{ address: 0x1_0000_0008 }, '0800000001000000'],
      [2 ** 53 - 1, 'ffffffffffff1f00'],
      [null, '0000000000000000'],
    ],
  ]),
  [{ bytes: 5 }, 5, [[Uint8Array.of(1, 2, 3, 4, 5), '0102030405']]],
  [
    { bytes: 40 },
    40,
    [
      [
        Uint8Array.from({ length: 40 }, (_, i) => 2 * i).buffer,
        Buffer.from(Uint8Array.from({ length: 40 }, (_, i) => 2 * i)).toString('hex'),
      ],
    ],
  ],
];

/** The address of each argument, from the table. */
const placesOf = ({ address }: KernelArguments, count: number): number[] =>
  Array.from(new BigUint64Array(viewMemory(address, 8 * count)), Number);

const bytesAt = (address: number, byteLength: number): string =>
  Buffer.from(viewMemory(address as Address, byteLength)).toString('hex');

describe('KernelArguments', () => {
  test('an argument of every type has the bytes of C, whatever was there before', () => {
    emulate();
    const context = Context.primary();
    const params = VALUES.map(([param]) => param);
    // All types, twice: no value may overwrite another.
    const block = new KernelArguments('k', context, [...params, ...params]);
    const most = Math.max(...VALUES.map(([, , values]) => values.length));
    for (let round = 0; round < 2 * most; round += 1) {
      const chosen = [...VALUES, ...VALUES].map(([param, byteLength, values], at) => {
        const [value, hex] = values[(round + at) % values.length] as [unknown, string];
        return { param, byteLength, value, hex };
      });
      block.write(chosen.map(({ value }) => value));
      for (const [at, place] of placesOf(block, chosen.length).entries()) {
        const { param, byteLength, value, hex } = chosen[at] as (typeof chosen)[0];
        assert.equal(bytesAt(place, byteLength), hex, `${JSON.stringify(param)} ${String(value)}`);
        assert.equal(place % (typeof param === 'object' ? 16 : 8), 0);
      }
    }
  });

  test('memory is passed by its address, and only to pointers of its dtype', () => {
    emulate();
    const context = Context.primary();
    using buffer = DeviceBuffer.allocate(64);
    const block = new KernelArguments('k', context, ['pointer', 'float32*', 'float32*']);
    const view = { address: buffer.address + 8, dtype: { name: 'float32' } };
    block.write([buffer, buffer.subarray(16), view]);
    const told = placesOf(block, 3).map((place) => Buffer.from(viewMemory(place as Address, 8)));
    assert.deepEqual(
      told.map((bytes) => Number(bytes.readBigUInt64LE())),
      [buffer.address, buffer.address + 16, buffer.address + 8],
    );
    assert.throws(() => block.write([null, { ...view, dtype: { name: 'int32' } }, null]), {
      name: 'TypeError',
      message: 'argument 1 of kernel k points to float32: its items are int32',
    });
  });

  /** Values just beyond each type, with the error for them. */
  const BEYOND: readonly (readonly [Parameter, readonly unknown[], RegExp])[] = [
    ['int8', [-129, 128, 0.5, Number.NaN], /an integer from -2\^7 to 2\^7 - 1, not /],
    ['uint8', [-1, 256, 0.5], /an integer from 0 to 2\^8 - 1, not /],
    ['int16', [-32_769, 32_768], /an integer from -2\^15 to 2\^15 - 1, not /],
    ['uint16', [-1, 65_536], /an integer from 0 to 2\^16 - 1, not /],
    ['int32', [-(2 ** 31) - 1, 2 ** 31, 1.5], /an integer from -2\^31 to 2\^31 - 1, not /],
    ['uint32', [-1, 2 ** 32, 1.5], /an integer from 0 to 2\^32 - 1, not /],
    [
      'int64',
      [-(2n ** 63n) - 1n, 2n ** 63n, 2 ** 53, 0.5],
      /from -2\^63 to 2\^63 - 1 \(as a number: a/,
    ],
    [
      'uint64',
      [-1n, 2n ** 64n, -1, 2 ** 53],
      /from 0 to 2\^64 - 1 \(as a number: a safe one\), not /,
    ],
    [
      'pointer',
      [-1, 2 ** 53, 0.5, { address: -8 }],
      /an address, an integer from 0 to 2\^53 - 1, not /,
    ],
    ['float64*', [-1, 2 ** 53], /an address, an integer from 0 to 2\^53 - 1, not /],
    [{ bytes: 4 }, [new Uint8Array(3), new Uint8Array(5)], /has 4 bytes, not [35]$/],
  ];

  const MISTYPED: readonly (readonly [Parameter, readonly unknown[], RegExp])[] = [
    ['bool', [1, 'true', null, undefined], /must be true or false, not /],
    ['int32', ['1', 1n, true, null, undefined], /must be a number, for int32, not /],
    ['int64', ['1', true, null], /must be a number or a bigint, for int64, not /],
    ['float32', ['1', 1n, {}], /must be a number, for float32, not /],
    ['pointer', ['1', 1n, undefined, true, {}], /must be in device memory .* for pointer, not /],
    ['float32*', [new Float32Array(4)], /which is in host memory: copy it to the device$/],
    [{ bytes: 4 }, [4, null, 'abcd', {}], /argument 0 of kernel k /],
  ];

  test('an argument out of range throws an error with its index and the valid range', () => {
    emulate();
    const context = Context.primary();
    for (const [name, cases] of [
      ['RangeError', BEYOND],
      ['TypeError', MISTYPED],
    ] as const)
      for (const [param, values, message] of cases) {
        const block = new KernelArguments('k', context, [param]);
        for (const value of values) {
          const what = `${JSON.stringify(param)} ${String(value)}`;
          assert.throws(() => block.write([value]), { name, message }, what);
          assert.throws(() => block.write([value]), { message: /^argument 0 of kernel k / }, what);
        }
      }
    const two = new KernelArguments('k', context, ['int8', { bytes: 4 }]);
    for (const args of [[], [1], [1, new Uint8Array(4), 1]])
      assert.throws(() => two.write(args), {
        name: 'TypeError',
        message: /^kernel k takes 2 arguments \(int8, .*\), not [013]$/,
      });
  });
});

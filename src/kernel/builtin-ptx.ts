/**
 * The PTX of the built-in kernels, which copy or fill items that are not contiguous. There is one for
 * each word length (1 to 16 bytes) and index width (32 and 64 bits). Each thread sets one word. The
 * axes are an argument of 192 bytes: 8 lengths, 8 target strides and 8 source strides, 64 bits each,
 * the fastest axis first.
 */

/** The number of bytes that a thread copies or sets. */
export type WordLength = 1 | 2 | 4 | 8 | 16;

/** The index width: 32 if all lengths, strides and the number of words fit into 32 bits. */
export type IndexBits = 32 | 64;

export const WORD_LENGTHS: readonly WordLength[] = [1, 2, 4, 8, 16];
const INDEX_BITS: readonly IndexBits[] = [32, 64];

/** The most axes that the kernels support. */
export const MAX_AXES = 8;

export const copyKernelName = (word: WordLength, bits: IndexBits): string =>
  `cuffi_copy_${word}_${bits}`;
export const fillKernelName = (word: WordLength, bits: IndexBits): string =>
  `cuffi_fill_${word}_${bits}`;

// PTX ISA 7.4 and sm_70 work with drivers from CUDA 11.4 on and devices from Volta on.
const HEAD = '.version 7.4\n.target sm_70\n.address_size 64\n';

/** Code that computes the addresses of the thread's word: %to, and %from if there is a source. */
function addressingCode(bits: IndexBits, hasSource: boolean): string {
  const isWide = bits === 64;
  const [unsigned, signed] = [`u${bits}`, `s${bits}`] as const;
  const step = isWide ? 'mad.lo.s64' : 'mad.wide.s32';
  const source = `
  ld.param.${signed} %stride, [%axes+128];
  ${step} %from, %at, %stride, %from;`;
  return `
  .reg .pred %p;
  .reg .b32 %block, %threads, %thread, %count;
  .reg .b64 %items, %wide, %axes, %to${hasSource ? ', %from' : ''};
  .reg .b${bits} %index, %rest, %length, %at, %stride;
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %thread, %tid.x;
  cvt.u64.u32 %wide, %thread;
  mad.wide.u32 %wide, %block, %threads, %wide;
  ld.param.u64 %items, [items];
  setp.ge.u64 %p, %wide, %items;
  @%p bra END;
  cvt.${unsigned}.u64 %index, %wide;
  ld.param.u64 %to, [target];
  cvta.to.global.u64 %to, %to;${
    hasSource
      ? `
  ld.param.u64 %from, [source];
  cvta.to.global.u64 %from, %from;`
      : ''
  }
  ld.param.u32 %count, [count];
  mov.b64 %axes, axes;
AXIS:
  setp.eq.u32 %p, %count, 0;
  @%p bra PLACED;
  sub.u32 %count, %count, 1;
  ld.param.${unsigned} %length, [%axes];
  div.${unsigned} %rest, %index, %length;
  mul.lo.${unsigned} %at, %rest, %length;
  sub.${unsigned} %at, %index, %at;
  mov.b${bits} %index, %rest;
  ld.param.${signed} %stride, [%axes+64];
  ${step} %to, %at, %stride, %to;${hasSource ? source : ''}
  add.u64 %axes, %axes, 8;
  bra AXIS;
PLACED:`;
}

const copyEntry = (word: WordLength, bits: IndexBits): string => `
.visible .entry ${copyKernelName(word, bits)}(
  .param .u64 target,
  .param .u64 source,
  .param .u64 items,
  .param .u32 count,
  .param .align 8 .b8 axes[192]
)
{${addressingCode(bits, true)}
  ${
    {
      1: '.reg .b32 %word;\n  ld.global.u8 %word, [%from];\n  st.global.u8 [%to], %word;',
      2: '.reg .b32 %word;\n  ld.global.u16 %word, [%from];\n  st.global.u16 [%to], %word;',
      4: '.reg .b32 %word;\n  ld.global.u32 %word, [%from];\n  st.global.u32 [%to], %word;',
      8: '.reg .b64 %word;\n  ld.global.u64 %word, [%from];\n  st.global.u64 [%to], %word;',
      16:
        '.reg .b64 %low, %high;\n  ld.global.v2.u64 {%low, %high}, [%from];\n' +
        '  st.global.v2.u64 [%to], {%low, %high};',
    }[word]
  }
END:
  ret;
}
`;

const fillEntry = (word: WordLength, bits: IndexBits): string => `
.visible .entry ${fillKernelName(word, bits)}(
  .param .u64 target,
  .param .u64 low,
  .param .u64 high,
  .param .u64 items,
  .param .u32 count,
  .param .align 8 .b8 axes[192]
)
{${addressingCode(bits, false)}
  .reg .b64 %low, %high;
  ld.param.u64 %low, [low];
  ld.param.u64 %high, [high];
  ${
    word === 16
      ? 'st.global.v2.u64 [%to], {%low, %high};'
      : word === 8
        ? 'st.global.u64 [%to], %low;'
        : `.reg .b32 %word;\n  cvt.u32.u64 %word, %low;\n  st.global.u${8 * word} [%to], %word;`
  }
END:
  ret;
}
`;

const allVariants = (entry: (word: WordLength, bits: IndexBits) => string): string =>
  HEAD + INDEX_BITS.flatMap((bits) => WORD_LENGTHS.map((word) => entry(word, bits))).join('');

/** The module that copies. */
export const copyPtx = (): string => allVariants(copyEntry);

/** The module that fills. */
export const fillPtx = (): string => allVariants(fillEntry);

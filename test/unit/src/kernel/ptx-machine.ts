/**
 * Runs PTX on the CPU, one instruction at a time. It supports the instructions that cuffi's kernels
 * use. It throws for what would go wrong on a GPU: an unknown instruction, register or memory, a
 * wrong width, a misaligned address.
 */

/** Memory by its bytes; only what is in it can be read, and `limits` says what can be written. */
export interface PtxMemory {
  readonly bytes: Map<bigint, number>;
  readonly isWritable: (address: bigint) => boolean;
}

/** A value, or the bytes of a struct. */
export type PtxArgument = bigint | Uint8Array;

interface Instruction {
  readonly guard: string | undefined;
  /** Its name without the type that it works on. */
  readonly name: string;
  /** What stands between the name and that type, as `gt` and `u32` of `setp.gt.u32`. */
  readonly modifier: string;
  readonly isSigned: boolean;
  readonly bits: number;
  readonly operands: readonly string[];
}

interface Parameter {
  readonly name: string;
  readonly offset: number;
  readonly byteLength: number;
}

/** Which thread of a launch it is: the block, how many of them there are, and how many threads each has. */
interface Place {
  readonly at: number;
  readonly grid: number;
  readonly block: number;
  readonly lane: number;
}

/** A kernel, taken from the text of its module. */
export class PtxKernel {
  readonly #instructions: readonly Instruction[];
  readonly #labels: ReadonlyMap<string, number>;
  /** The bits of each register; 1 for a predicate. */
  readonly #widths: ReadonlyMap<string, number>;
  readonly #parameters: readonly Parameter[];

  constructor(text: string, name: string) {
    const entry = new RegExp(`\\.entry\\s+${name}\\s*\\(([^)]*)\\)\\s*\\{([\\s\\S]*?)\\n\\}`);
    const [, parameters, body] = entry.exec(text) ?? [];
    if (parameters === undefined || body === undefined) throw new Error(`no kernel ${name}`);
    this.#parameters = parametersOf(parameters);
    const instructions: Instruction[] = [];
    const labels = new Map<string, number>();
    const widths = new Map<string, number>();
    for (const statement of body.split(/;|(?<=:)\s*\n/).map((each) => each.trim())) {
      if (statement === '') continue;
      if (statement.startsWith('.reg')) declare(statement, widths);
      else if (statement.endsWith(':')) labels.set(statement.slice(0, -1), instructions.length);
      else instructions.push(parse(statement));
    }
    this.#instructions = instructions;
    this.#labels = labels;
    this.#widths = widths;
  }

  /** Runs one block of a launch, thread after thread. */
  runBlock(
    at: number,
    { grid, block }: { readonly grid: number; readonly block: number },
    args: readonly PtxArgument[],
    memory: PtxMemory,
  ): void {
    const given = argumentBytes(this.#parameters, args);
    for (let lane = 0; lane < block; lane += 1) this.#run({ at, grid, block, lane }, given, memory);
  }

  /** Runs one thread of a launch. */
  runThread(place: Place, args: readonly PtxArgument[], memory: PtxMemory): void {
    this.#run(place, argumentBytes(this.#parameters, args), memory);
  }

  #run({ at, grid, block, lane }: Place, given: DataView, memory: PtxMemory): void {
    const specials: Readonly<Record<string, number>> = {
      '%ctaid.x': at,
      '%nctaid.x': grid,
      '%ntid.x': block,
      '%tid.x': lane,
    };
    const registers = new Map<string, bigint>();
    const widths = this.#widths;
    const widthOf = (name: string): number => known(widths.get(name), `register ${name}`);
    /** What is read as so many bits: a register of that width, a number, a parameter's address. */
    const read = (operand: string, bits: number): bigint => {
      const width = widths.get(operand);
      if (width !== undefined) {
        fits(width, bits, operand);
        return known(registers.get(operand), `a value in ${operand}`);
      }
      if (/^-?\d+$/.test(operand)) return BigInt.asUintN(bits, BigInt(operand));
      const special = specials[operand];
      if (special !== undefined) {
        fits(32, bits, operand);
        return BigInt(special);
      }
      const parameter = this.#parameters.find(({ name }) => name === operand);
      return BigInt(known(parameter, operand).offset);
    };
    const write = (register: string, bits: number, value: bigint): void => {
      fits(widthOf(register), bits, register);
      registers.set(register, BigInt.asUintN(bits, value));
    };
    /** What `[%register+8]` or `[name]` names. */
    const addressIn = (operand: string): bigint => {
      const [, base = '', offset = '0'] = /^\[([%$\w]+)(?:\+(\d+))?\]$/.exec(operand) ?? [];
      return read(base, 64) + BigInt(offset);
    };
    const parts = (operand: string): string[] =>
      operand.startsWith('{') ? operand.slice(1, -1).split(',') : [operand];

    for (let next = 0; next < this.#instructions.length; ) {
      const instruction = this.#instructions[next] as Instruction;
      const { guard, name, modifier, isSigned, bits, operands } = instruction;
      next += 1;
      if (guard !== undefined && read(guard, 1) === 0n) continue;
      const [to = '', a = '', b = '', c = ''] = operands;
      /** An operand as the number that the type of the instruction makes of it. */
      const number = (operand: string, width = bits): bigint => {
        const value = read(operand, width);
        return isSigned ? BigInt.asIntN(width, value) : value;
      };
      switch (name) {
        case 'ret':
          return;
        case 'bra':
          next = known(this.#labels.get(to), `label ${to}`);
          break;
        case 'mov': {
          const [target, source] = [parts(to), parts(a)];
          const [into, from] = [bits / target.length, bits / source.length];
          const value = source.reduce(
            (all, part, at) => all | (read(part, from) << BigInt(from * at)),
            0n,
          );
          for (const [at, part] of target.entries()) write(part, into, value >> BigInt(into * at));
          break;
        }
        case 'cvta.to.global':
          write(to, bits, read(a, bits));
          break;
        case 'cvt':
          write(to, Number(modifier.slice(1)), number(a));
          break;
        case 'add':
          write(to, bits, number(a) + number(b));
          break;
        case 'sub':
          write(to, bits, number(a) - number(b));
          break;
        case 'div':
          write(to, bits, number(a) / number(b));
          break;
        case 'mul.lo':
          write(to, bits, number(a) * number(b));
          break;
        case 'mad.lo':
          write(to, bits, number(a) * number(b) + number(c));
          break;
        case 'mad.wide':
          write(to, 2 * bits, number(a) * number(b) + read(c, 2 * bits));
          break;
        case 'setp':
          write(to, 1, BigInt(compared(modifier, number(a), number(b))));
          break;
        case 'ld.param':
          write(to, bits, paramAt(given, Number(addressIn(a)), bits));
          break;
        case 'ld.global':
        case 'ld.global.v2': {
          const address = aligned(addressIn(a), bits, parts(to).length);
          for (const [at, register] of parts(to).entries()) {
            const value = load(memory, address + BigInt((bits / 8) * at), bits / 8);
            // A register may be wider than what is loaded.
            registers.set(register, value);
            if (widthOf(register) < bits) throw new Error(`${register} is too narrow`);
          }
          break;
        }
        case 'st.global':
        case 'st.global.v2': {
          const address = aligned(addressIn(to), bits, parts(a).length);
          for (const [at, register] of parts(a).entries())
            store(
              memory,
              address + BigInt((bits / 8) * at),
              bits / 8,
              BigInt.asUintN(bits, read(register, Math.max(bits, widthOf(register)))),
            );
          break;
        }
        default:
          throw new Error(`unknown instruction ${name}.${modifier}`);
      }
    }
    throw new Error('the kernel does not end');
  }
}

function parametersOf(text: string): Parameter[] {
  let end = 0;
  return text
    .split(',')
    .filter((each) => each.trim() !== '')
    .map((each) => {
      const [, align, width, name = '', count = '1'] =
        /\.param\s+(?:\.align\s+(\d+)\s+)?\.[bus](\d+)\s+(\w+)(?:\[(\d+)\])?/.exec(each) ?? [];
      const byteLength = (Number(width) / 8) * Number(count);
      const alignment = Number(align ?? byteLength);
      const offset = Math.ceil(end / alignment) * alignment;
      end = offset + byteLength;
      return { name, offset, byteLength };
    });
}

function argumentBytes(parameters: readonly Parameter[], args: readonly PtxArgument[]): DataView {
  const last = parameters.at(-1) as Parameter;
  const bytes = new Uint8Array(last.offset + last.byteLength);
  for (const [at, { name, offset, byteLength }] of parameters.entries()) {
    const arg = known(args[at], `argument ${name}`);
    if (typeof arg !== 'bigint') bytes.set(arg, offset);
    else
      for (let n = 0; n < byteLength; n += 1)
        bytes[offset + n] = Number((arg >> BigInt(8 * n)) & 0xffn);
  }
  return new DataView(bytes.buffer);
}

function declare(statement: string, widths: Map<string, number>): void {
  const [, type, names = ''] = /^\.reg\s+\.(\w+)\s+(.*)$/s.exec(statement) ?? [];
  const bits = type === 'pred' ? 1 : Number(/\d+/.exec(type ?? '')?.[0]);
  for (const name of names.split(',').map((each) => each.trim())) {
    const [, stem, count] = /^(.*)<(\d+)>$/.exec(name) ?? [];
    if (stem === undefined) widths.set(name, bits);
    else for (let n = 0; n < Number(count); n += 1) widths.set(stem + String(n), bits);
  }
}

function parse(statement: string): Instruction {
  const [, guard, op = '', rest = ''] = /^(?:@(%\w+)\s+)?([\w.]+)\s*(.*)$/s.exec(statement) ?? [];
  // Commas within braces part registers of one operand.
  const operands = rest.replace(/\s+/g, '').match(/\{[^}]*\}|[^,]+/g) ?? [];
  const [name = '', ...parts] = op.split('.');
  const type = parts.at(-1) ?? '';
  const between = parts.slice(0, -1).join('.');
  const takesModifier = name === 'cvt' || name === 'setp';
  return {
    guard,
    name: takesModifier || between === '' ? name : `${name}.${between}`,
    modifier: takesModifier ? between : '',
    isSigned: type.startsWith('s'),
    bits: Number(/\d+$/.exec(type)?.[0] ?? 0),
    operands,
  };
}

function compared(how: string, a: bigint, b: bigint): boolean {
  switch (how) {
    case 'eq':
      return a === b;
    case 'ge':
      return a >= b;
    default:
      throw new Error(`unknown comparison ${how}`);
  }
}

function paramAt(given: DataView, offset: number, bits: number): bigint {
  return bits === 64 ? given.getBigUint64(offset, true) : BigInt(given.getUint32(offset, true));
}

function load({ bytes }: PtxMemory, address: bigint, byteLength: number): bigint {
  let value = 0n;
  for (let n = 0; n < byteLength; n += 1) {
    const byte = known(bytes.get(address + BigInt(n)), `memory to read at ${address}`);
    value |= BigInt(byte) << BigInt(8 * n);
  }
  return value;
}

function store(memory: PtxMemory, address: bigint, byteLength: number, value: bigint): void {
  for (let n = 0; n < byteLength; n += 1) {
    const at = address + BigInt(n);
    if (!memory.isWritable(at)) throw new Error(`no memory to write at ${at}`);
    memory.bytes.set(at, Number((value >> BigInt(8 * n)) & 0xffn));
  }
}

function aligned(address: bigint, bits: number, count: number): bigint {
  if (address % BigInt((bits / 8) * count) !== 0n) throw new Error(`${address} is misaligned`);
  return address;
}

function fits(width: number, bits: number, what: string): void {
  if (width !== bits) throw new Error(`${what} has ${width} bits, not ${bits}`);
}

function known<T>(value: T | undefined, what: string): T {
  if (value === undefined) throw new Error(`there is no ${what}`);
  return value;
}

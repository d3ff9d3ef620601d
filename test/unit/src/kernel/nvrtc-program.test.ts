/** Compiles by a stand-in for libnvrtc, written in C, whose code says what the compiler was given. */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, beforeEach, describe, test } from 'node:test';
import { CompileError, compile, compileSync } from '../../../../src/index.ts';
import { noCompiler, openBuildFolder } from '../../../abi/toolchain.ts';
import { emulate } from '../emulate.ts';

const STAND_IN = `
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { char source[256]; char text[4096]; char log[64]; } Program;
static atomic_int running, most, made, destroyed;
int nvrtcVersion(int *major, int *minor) { *major = 13; *minor = 0; return 0; }
int nvrtcGetNumSupportedArchs(int *n) { *n = 2; return 0; }
int nvrtcGetSupportedArchs(int *archs) { archs[0] = 100; archs[1] = 90; return 0; }
const char *nvrtcGetErrorString(int status) { return status == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INVALID"; }
int nvrtcCreateProgram(Program **out, const char *source, const char *name, int n, const char *const *headers, const char *const *names) {
  if (strcmp(source, "cannot be made") == 0) return 3;
  Program *program = calloc(1, sizeof *program);
  snprintf(program->source, sizeof program->source, "%s", source);
  char *at = program->text + sprintf(program->text, "%s in %s\\n", source, name);
  for (int i = 0; i < n; i++) at += sprintf(at, "header %s: %s\\n", names[i], headers[i]);
  made++;
  *out = program;
  return 0;
}
int nvrtcDestroyProgram(Program **program) { free(*program); *program = 0; destroyed++; return 0; }
int nvrtcAddNameExpression(Program *program, const char *name) {
  if (strcmp(name, "refused") == 0) return 3;
  char *end = program->text + strlen(program->text);
  sprintf(end, "name %s\\n", name);
  return 0;
}
int nvrtcCompileProgram(Program *program, int n, const char *const *options) {
  if (strcmp(program->source, "does not compile") == 0) {
    strcpy(program->log, "kernel.cu(1): error: what is this\\n");
    return 6;
  }
  int now = ++running;
  for (int seen = most; now > seen && !atomic_compare_exchange_weak(&most, &seen, now);) {}
  if (strcmp(program->source, "slow") == 0) usleep(50000);
  char *at = program->text + strlen(program->text);
  for (int i = 0; i < n; i++) at += sprintf(at, "option %s\\n", options[i]);
  sprintf(at, "at most %d at once, %d open\\n", most, made - destroyed);
  running--;
  return 0;
}
int nvrtcGetPTXSize(Program *program, size_t *size) { *size = strlen(program->text) + 1; return 0; }
int nvrtcGetPTX(Program *program, char *into) { strcpy(into, program->text); return 0; }
int nvrtcGetCUBINSize(Program *program, size_t *size) { *size = 3; return 0; }
int nvrtcGetCUBIN(Program *program, char *into) { memcpy(into, "\\1\\0\\0", 3); return 0; }
int nvrtcGetProgramLogSize(Program *program, size_t *size) { *size = strlen(program->log) + 1; return 0; }
int nvrtcGetProgramLog(Program *program, char *into) { strcpy(into, program->log); return 0; }
int nvrtcGetLoweredName(Program *program, const char *name, const char **out) {
  static char lowered[8][64];
  static int next;
  char *place = lowered[next++ % 8];
  snprintf(place, 64, "_Z%zu%s", strlen(name), name);
  *out = place;
  return 0;
}
`;

const skip = noCompiler;
if (!skip)
  process.env['CUFFI_NVRTC'] = openBuildFolder().compile('libnvrtc.so.13', STAND_IN, [
    '-shared',
    '-fPIC',
  ]);
const cache = mkdtempSync(join(tmpdir(), 'cuffi-stand-in-'));
process.env['CUFFI_CACHE'] = cache;
after(() => rmSync(cache, { recursive: true }));

const uncached = { cache: false, arch: 'compute_90' } as const;

describe('compile, by a stand-in for libnvrtc', { skip }, () => {
  beforeEach(() => void emulate());

  test('the compiler gets the source, all headers, names and options, and each name is found', async () => {
    const given = {
      ...uncached,
      headers: { 'a.h': '#define A', 'long/name.h': '', 'b.h': '#define B 1' },
      names: ['one<int>', 'two', 'three<float, 4>'],
      options: ['-lineinfo', '--std=c++20'],
    };
    for (const compiled of [await compile('source', given), compileSync('source', given)]) {
      const { code } = compiled;
      assert.deepEqual(code.split('\n').slice(0, 10), [
        'source in kernel.cu',
        'header a.h: #define A',
        'header long/name.h: ',
        'header b.h: #define B 1',
        'name one<int>',
        'name two',
        'name three<float, 4>',
        'option --gpu-architecture=compute_90',
        'option -lineinfo',
        'option --std=c++20',
      ]);
      assert.deepEqual(
        given.names.map((name) => compiled.name(name)),
        ['_Z8one<int>', '_Z3two', '_Z15three<float, 4>'],
      );
    }
    const cubin = compileSync('source', { ...uncached, to: 'cubin', arch: 'sm_90' });
    assert.deepEqual([...cubin.code], [1, 0, 0]);
  });

  test('two compilations run at a time, and the next ones as soon as one is done', async () => {
    const all = await Promise.all(Array.from({ length: 7 }, () => compile('slow', uncached)));
    for (const { code } of all) assert.match(code, /at most [12] at once, [12] open/);
    assert.match(compileSync('source', uncached).code, /at most 2 at once, 1 open/);
  });

  test('a failure frees what was made, and the next compilation is right', async () => {
    for (const [source, options, message] of [
      ['cannot be made', {}, /^libnvrtc 13\.0: nvrtcCreateProgram failed: NVRTC_ERROR_INVALID$/],
      ['source', { names: ['first', 'refused'] }, /nvrtcAddNameExpression failed/],
      ['does not compile', {}, /^compiling failed: .*what is this\n {2}1 \| does not compile\n/],
    ] as const) {
      const given = { ...uncached, ...options };
      const refused = (error: unknown): boolean =>
        error instanceof CompileError && message.test(error.message);
      assert.throws(() => compileSync(source, given), refused);
      // More often than compilations may run at a time.
      for (let time = 0; time < 3; time += 1) await assert.rejects(compile(source, given), refused);
    }
    assert.match((await compile('source', uncached)).code, /1 open/);
  });

  test('a result is cached unless the option or the environment says otherwise', async () => {
    const arch = 'compute_90';
    const files = (): number => {
      try {
        return readdirSync(join(cache, 'compiled')).length;
      } catch {
        return 0;
      }
    };
    const own = mkdtempSync(join(tmpdir(), 'cuffi-own-cache-'));
    const expected: readonly [options: object, cached: number][] = [
      [{ cache: false }, 0],
      [{ cache: own }, 0],
      [{}, 1],
      [{ cache: true }, 1],
    ];
    for (const [options, cached] of expected) {
      await compile('kept', { arch, ...options });
      assert.equal(files(), cached, JSON.stringify(options));
    }
    assert.equal(readdirSync(join(own, 'compiled')).length, 1);
    rmSync(own, { recursive: true });
  });
});

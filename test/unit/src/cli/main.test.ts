import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Outcome, runProgram } from '../emulate.ts';

const cuffi = (args: string, env: NodeJS.ProcessEnv = {}): Outcome =>
  runProgram(
    new URL('../../../../src/cli/main.ts', import.meta.url),
    args.split(' ').filter(Boolean),
    env,
  );

test('what is typed wrong is told with the usage on stderr, and nothing is done', () => {
  const { code, stdout, stderr } = cuffi('roundtrip --elements=0');
  assert.deepEqual({ code, stdout }, { code: 2, stdout: '' });
  assert.match(stderr, /^cuffi: --elements must be .+\n\nusage: cuffi roundtrip/s);
});

test('help is printed and does nothing else', () => {
  const { code, stdout, stderr } = cuffi('--help');
  assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
  assert.match(stdout, /^usage: cuffi roundtrip \[options\]\n/);
});

test('a device that is not there ends it with what is', () => {
  const { code, stdout, stderr } = cuffi('roundtrip --device 99');
  assert.equal(code, 1);
  assert.match(stdout, /^driver +emulated/);
  assert.match(stderr, /^cuffi: there is no device 99: this process sees 1 /);
});

test('a driver that is not there ends it with what was tried', () => {
  const { code, stderr } = cuffi('roundtrip --driver /nowhere/libcuda.so.1');
  assert.equal(code, 1);
  assert.match(
    stderr,
    /^cuffi: what was chosen is no CUDA driver:\n {2}\/nowhere\/libcuda\.so\.1: /,
  );
});

test('a broken driver is shown, never replaced by the emulated one', () => {
  const { code, stdout, stderr } = cuffi('roundtrip', { CUFFI_EMULATED_FAULTS: 'cuInit:*=999' });
  assert.equal(code, 1);
  assert.doesNotMatch(stdout, /round trip/);
  assert.match(stderr, /^cuffi: cuInit failed .*\(CUDA_ERROR_UNKNOWN, 999\)/);
});

test('a device that cannot share ends it well, with the reason', () => {
  const env = { CUFFI_EMULATED_ATTRIBUTES: '41=0' };
  const spoken = cuffi('roundtrip --kind legacy', env);
  assert.deepEqual({ code: spoken.code, stderr: spoken.stderr }, { code: 0, stderr: '' });
  assert.match(
    spoken.stdout,
    /This device cannot share legacy memory between processes: the device does not support unified addressing\. Nothing to show\.\n$/,
  );
  const { code, stdout } = cuffi('roundtrip --kind legacy --json', env);
  assert.equal(code, 0);
  const { result, support } = JSON.parse(stdout);
  assert.equal(result, null);
  assert.equal(support.memory.supported, false);
});

test('--json prints one object and no sentence', () => {
  const { code, stdout, stderr } = cuffi('roundtrip --json --elements 1000');
  assert.deepEqual({ code, stderr }, { code: 0, stderr: '' });
  const { driver, device, result } = JSON.parse(stdout);
  assert.equal(driver, 'emulated');
  assert.equal(device.ordinal, 0);
  assert.equal(result.byteLength, 4000);
  assert.deepEqual(result.mismatches, { child: 0, parent: 0 });
  assert.equal(result.bytesCopied, 0);
  assert.equal(result.ok, true);
});

test('the first line says which driver, the last how it went, down to one element', () => {
  for (const elements of [1, 3, 5]) {
    const { code, stdout } = cuffi(`roundtrip --elements ${elements}`);
    assert.equal(code, 0);
    assert.match(stdout, /^driver +emulated, as CUFFI_DRIVER says: .* no GPU/);
    assert.match(stdout, /\nround trip: OK\n$/);
  }
});

test('a wish for a driver wins over the environment', () => {
  const { code, stdout } = cuffi('roundtrip --driver emulated --elements 4', {
    CUFFI_DRIVER: '/nowhere/libcuda.so.1',
  });
  assert.equal(code, 0);
  assert.match(stdout, /^driver +emulated, as --driver says: /);
});

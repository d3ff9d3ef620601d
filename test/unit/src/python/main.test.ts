/** `python -m cuffi`, and what the package says where it cannot work. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, test } from 'node:test';
import { VERSIONS } from '../../../../src/ipc/protocol.ts';
import { companionPath } from '../../../../src/python/companion.ts';
import { noPython } from '../../../support/python.ts';

const folder = companionPath() as string;
const { version } = JSON.parse(readFileSync(join(folder, '../../package.json'), 'utf8'));

function python(args: readonly string[], env: NodeJS.ProcessEnv = {}) {
  const { stdout, stderr, status } = spawnSync('python3', args, {
    env: { ...process.env, PYTHONPATH: folder, ...env },
    encoding: 'utf8',
    timeout: 60_000,
  });
  return { stdout, stderr, status };
}

const cuffi = (args: readonly string[], env: NodeJS.ProcessEnv = {}) =>
  python(['-m', 'cuffi', ...args], { CUFFI_DRIVER: 'emulated', ...env });

/** Runs the doctor on machines that are made of these facts. */
const ON_A_MACHINE = `
import contextlib, io, types
from cuffi import _doctor, __main__
NAMESPACES = {'/proc/self/ns/pid': 1, '/proc/self/ns/ipc': 2, '/proc/self/ns/mnt': 3}
def statvfs(of):
    if of is None: raise FileNotFoundError
    size, blocks, free = of
    return types.SimpleNamespace(f_bsize=1, f_frsize=size, f_blocks=blocks, f_bfree=blocks, f_bavail=free)
def doctor(name, shm=(4096, 16384, 8192), limit=(1024, 4096), fds=4, pid=4711, mark='', release='6.8', **environ):
    _doctor.os = types.SimpleNamespace(
        environ={'CUFFI_DRIVER': 'emulated', **environ}, getpid=lambda: pid, statvfs=lambda path: statvfs(shm),
        listdir=lambda path: [''] * fds, path=types.SimpleNamespace(exists=lambda path: path == mark),
        stat=lambda path: types.SimpleNamespace(st_ino=NAMESPACES[path]),
        uname=lambda: types.SimpleNamespace(release=release))
    _doctor.resource = types.SimpleNamespace(RLIMIT_NOFILE=7, RLIM_INFINITY=-1, getrlimit=lambda of: {7: limit}[of])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed): code = __main__.main(['doctor'])
    lines = printed.getvalue().replace('\\n  →', ' →').split('\\n')
    print(code, next(line for line in lines if line.startswith(name)))
`;

describe('python -m cuffi', { skip: noPython }, () => {
  test('version prints the version, the folder, the protocol and the interpreter', () => {
    const { stdout, status } = cuffi(['version'], { CUFFI_DRIVER: '/nowhere/libcuda.so' });
    const [what, protocol, interpreter] = stdout.split('\n');
    assert.equal(what, `cuffi ${version} for Python in ${join(folder, 'cuffi')}`);
    assert.equal(protocol, `protocol: version ${VERSIONS.max}`);
    assert.match(String(interpreter), /^Python 3\.\d+\S* in \//);
    assert.equal(status, 0);
  });

  test('doctor lists the devices, and says that no GPU is used', () => {
    const { stdout, status } = cuffi(['doctor'], { CUFFI_EMULATED_DEVICES: '2' });
    assert.match(
      stdout,
      /\ndriver: emulated, no GPU is used\ndevice 0: cuffi emulated device, GPU-[-\w]+\ndevice 1: .*\ncontainer: /,
    );
    assert.equal(status, 0);
  });

  test('doctor says what this process has that sharing needs', () => {
    const env = { CUDA_VISIBLE_DEVICES: '0', PYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:False' };
    const sound = cuffi(['doctor'], env);
    assert.match(sound.stdout, /\nown pid: \d+, namespaces: pid \d+, ipc \d+, mnt \d+\n/);
    assert.match(sound.stdout, /\n\/dev\/shm: \d+ MiB free of \d+ MiB\n/);
    assert.match(sound.stdout, /\ndescriptors: \d+ open, at most /);
    assert.match(sound.stdout, /\nCUDA_VISIBLE_DEVICES: '0'\n/);
    assert.match(sound.stdout, /\nPYTORCH_CUDA_ALLOC_CONF: 'expandable_segments:False'\n$/);
    assert.equal(sound.status, 0);
  });

  test('doctor judges each fact at both sides of its limit', () => {
    const LARGER = ' → Give the container a larger /dev/shm: --shm-size=1g, or --ipc=host.';
    const RAISE = ' → Objects that arrive need some: ulimit -n 65536.';
    const WSL = ' → Run both processes under Linux itself, or copy the data.';
    const NO_HANDLE = ' → Such tensors have no handle: unset it, or send memory of cuffi.empty().';
    const EQUAL_PIDS =
      ' → Other containers have a process of that number, too, and plain memory and events fail between equal numbers: run the containers with one pid namespace.';
    const OWN = 'namespaces: pid 1, ipc 2, mnt 3';
    /** What differs from a machine on which all works, and the exit code, the line and its remedy. */
    const rows: readonly (readonly [change: string, said: string])[] = [
      ['shm=(4096, 16384, 256)', '0 /dev/shm: 1 MiB free of 64 MiB'],
      ['shm=(4096, 16384, 255)', `1 /dev/shm: 0 MiB free of 64 MiB${LARGER}`],
      ['shm=(65536, 65536, 65536)', '0 /dev/shm: 4096 MiB free of 4096 MiB'],
      ['shm=None', `1 /dev/shm: there is none: events cannot be shared${LARGER}`],
      ['limit=(260, 4096)', '0 descriptors: 4 open, at most 260'],
      ['limit=(259, 4096)', `1 descriptors: 4 open, at most 259${RAISE}`],
      ['limit=(-1, -1), fds=9000', '0 descriptors: 9000 open, at most any number'],
      ['pid=99', `0 own pid: 99, ${OWN}`],
      ['pid=99, mark="/.dockerenv"', `0 own pid: 99, ${OWN}${EQUAL_PIDS}`],
      ['pid=100, mark="/.dockerenv"', `0 own pid: 100, ${OWN}`],
      ['mark="/.dockerenv"', '0 container: yes: /.dockerenv'],
      ['mark="/run/.containerenv"', '0 container: yes: /run/.containerenv'],
      ['mark="/etc/hostname"', '0 container: no sign of one'],
      ['release="5-Microsoft"', `1 WSL: Linux 5-Microsoft: WSL has no CUDA IPC${WSL}`],
      ['A="expandable_segments: True"', `1 A: 'expandable_segments: True'${NO_HANDLE}`],
      ['A="expandable_segments:False"', "0 A: 'expandable_segments:False'"],
    ];
    const calls = rows.map(([change, said]) => {
      const [, name] = /^. ([^:]+)/.exec(said) ?? [];
      return `doctor('${name}', ${change})\n`.replaceAll(/\bA\b/g, 'PYTORCH_ALLOC_CONF');
    });
    const ran = python(['-c', `${ON_A_MACHINE}${calls.join('')}`], { CUFFI_DRIVER: 'emulated' });
    assert.equal(ran.stderr, '');
    assert.deepEqual(
      ran.stdout.trimEnd().replaceAll('PYTORCH_ALLOC_CONF', 'A').split('\n'),
      rows.map(([, said]) => said),
    );
  });

  test('explain says what a status, a code and a message mean', () => {
    const opened = 'cuIpcOpenMemHandle_v2: Likely causes: the handle was made by this very process';
    const cases: readonly (readonly [text: string, ...lines: RegExp[]])[] = [
      ['2', /^CUDA_ERROR_OUT_OF_MEMORY \(2\): out of memory$/, /^ {2}Close buffers/],
      [
        'CUDA_ERROR_ILLEGAL_ADDRESS',
        /^CUDA_ERROR_ILLEGAL_ADDRESS \(700\)/,
        /^ {2}The context is lost/,
      ],
      ['exporter-gone', /^exporter-gone: IpcError: the process that shared the object has ended$/],
      ['closed', /^closed: ClosedError: an object was used after close\(\)/],
      [
        'cuIpcOpenMemHandle_v2 failed: invalid device context (CUDA_ERROR_INVALID_CONTEXT, 201)',
        /^CUDA_ERROR_INVALID_CONTEXT \(201\)/,
        new RegExp(`^ {2}${opened}`),
      ],
      ['IpcError same-pid: it was closed', /^same-pid: IpcError: the exporter has the same pid/],
    ];
    for (const [text, ...lines] of cases) {
      const { stdout, stderr, status } = cuffi(['explain', text]);
      const said = stdout.trimEnd().split('\n');
      assert.deepEqual([said.length, stderr, status], [lines.length, '', 0], stdout);
      for (const [at, line] of lines.entries()) assert.match(String(said[at]), line);
    }
    // Of any call, as none is named; and without a driver.
    const { stdout } = cuffi(['explain', '201'], { CUFFI_DRIVER: '/nowhere/libcuda.so' });
    assert.match(
      stdout,
      /^CUDA_ERROR_INVALID_CONTEXT \(201\)\n {2}cuIpcOpenMemHandle_v2: .*\n {2}cuIpcOpenEventHandle: /,
    );
    const read = spawnSync('python3', ['-m', 'cuffi', 'explain', '-'], {
      env: { ...process.env, PYTHONPATH: folder },
      input: 'cuffi.PeerGoneError: peer-gone\n',
      encoding: 'utf8',
    });
    assert.match(read.stdout, /^peer-gone: PeerGoneError: the process at the other end/);
    for (const [text, expected, code] of [
      ['it was closed', /names no status of the driver and no code of cuffi/, 1],
      ['98765', /names no status/, 1],
      ['{"kind":"legacy"}', /npx cuffi explain DESCRIPTOR/, 2],
    ] as const) {
      const { stderr, status } = cuffi(['explain', text]);
      assert.match(stderr, expected);
      assert.equal(status, code);
    }
  });

  test('doctor says why there is no device, and fails', () => {
    for (const [env, expected] of [
      [{ CUFFI_EMULATED_DEVICES: '0' }, /\nCUDA_ERROR_\w+: cuInit failed/],
      [
        { CUFFI_DRIVER: '/nowhere/libcuda.so' },
        /\ndriver-not-found: .*\n {2}\/nowhere\/libcuda\.so: .*cannot open/,
      ],
      [{ CUFFI_DRIVER: 'fast' }, /\ndriver-not-found: CUFFI_DRIVER must be cuda, emulated, or/],
      [{ CUFFI_EMULATED_DEVICES: 'x' }, /\ninvalid setting: CUFFI_EMULATED_DEVICES must be/],
    ] as const) {
      const { stdout, stderr, status } = cuffi(['doctor'], env);
      assert.match(stdout, expected);
      assert.equal(stderr, '');
      assert.equal(status, 1);
    }
  });

  test('prints its usage for anything else', () => {
    for (const args of [[], ['devices'], ['version', 'now'], ['explain']]) {
      const { stderr, status } = cuffi(args);
      assert.match(stderr, /^usage: python -m cuffi COMMAND/);
      assert.equal(status, 2);
    }
    const { stdout, status } = cuffi(['--help']);
    assert.match(stdout, /^usage: /);
    assert.equal(status, 0);
  });
});

describe('import cuffi', { skip: noPython }, () => {
  const importing = (change: string): string =>
    python(['-c', `import sys\n${change}\nimport cuffi`])
      .stderr.trim()
      .split('\n')
      .at(-1) ?? '';

  test('says that it needs Linux before it imports what only Linux has', () => {
    for (const platform of ['darwin', 'win32'])
      assert.match(
        importing(
          `sys.platform = '${platform}'; sys.modules['fcntl'] = sys.modules['termios'] = None`,
        ),
        new RegExp(`^ImportError: cuffi needs Linux, and this is ${platform}: `),
      );
  });

  test('says that it needs Python 3.9', () => {
    assert.match(
      importing('sys.version_info = (3, 8, 18)'),
      /^ImportError: cuffi needs Python 3\.9 or later, and this is 3\./,
    );
  });

  test('says that it needs the GIL', () => {
    assert.match(
      importing('sys._is_gil_enabled = lambda: False'),
      /^ImportError: cuffi relies on the GIL, .* start it with PYTHON_GIL=1, or with -X gil=1$/,
    );
    assert.equal(importing('sys._is_gil_enabled = lambda: True'), '');
  });
});

// On a processor that changes the order of loads and stores, words are read and written between fences.
const ON_ANOTHER_PROCESSOR = `
import os, types
os.uname = lambda real=os.uname(): types.SimpleNamespace(machine='aarch64', release=real.release, nodename=real.nodename)
import cuffi
from cuffi import _files, _process, _words
assert not _words._KEEPS_ORDER
# The rest is this processor's.
_files._SYS_KCMP, _files._SYS_STATX = 312, 332
log = []
class Words(list):
    def __getitem__(self, index):
        log.append('read')
        return super().__getitem__(index)
    def __setitem__(self, index, value):
        log.append('write')
        super().__setitem__(index, value)
class Fence:
    def __enter__(self): log.append('acquire')
    def __exit__(self, *_): log.append('release')
`;

describe('shared words on a processor that keeps no order', { skip: noPython }, () => {
  const run = (program: string): string => {
    const ran = python(['-c', `${ON_ANOTHER_PROCESSOR}${program}`], { CUFFI_DRIVER: 'emulated' });
    assert.equal(ran.stderr, '');
    return ran.stdout.trim();
  };

  test('are read before a fence, and written between two', () => {
    const fence = 'acquire release acquire release';
    const printed = run(
      'real, _process.locks.fence = _process.locks.fence, Fence()\n' +
        'words = _words.FencedWords(Words([0, 5]))\nwords[0] = 7\nassert words[0] == 7\n' +
        'print(*log)\n_process.locks.renew()\nprint(type(_process.locks.fence) is type(real))',
    );
    assert.equal(printed, `${fence} write ${fence} read ${fence}\nTrue`);
  });

  test('are those of timelines, channels and page-locked memory', () => {
    const printed = run(
      'channel = cuffi.Channel(2, byte_length=64, deliver="all")\n' +
        'timeline = cuffi.Timeline()\nmemory = cuffi.pinned(100)\n' +
        'with channel.acquire() as slot: slot.publish()\ntimeline.signal(3); timeline.reached(3)\n' +
        'print(type(channel._state.ring.words).__name__, timeline.value, memory.nbytes)\n' +
        'channel.close(); timeline.close(); memory.close()',
    );
    assert.equal(printed, 'FencedWords 3 100');
  });
});

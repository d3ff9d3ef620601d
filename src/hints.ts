/** What a caller may do about a status: by its number and, for some, by the call that returned it. */
import { closeSync, constants, openSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { effectiveUid } from '../ffi/linux/process.ts';
import type { CUresult } from '../ffi/results.ts';
import { isSticky } from './errors.ts';

/** What was launched last: kernels write it, hints read it. */
export const recentWork: { kernel: string | undefined } = { kernel: undefined };

const NEEDS_GPU =
  'This device or driver does not support it. The emulated driver never does: it needs a GPU.';

/** By the call and the status. */
export const BY_CALL: Readonly<Record<string, string>> = {
  'cuInit:304':
    'The driver could not open or map a device file. Likely causes: no permission for /dev/nvidia*, ' +
    'a container without the devices (--gpus all) or without /dev/nvidia-uvm (nvidia-modprobe -u), ' +
    'a sandbox (seccomp, SELinux), or a limit such as ulimit -v.',
  'cuInit:999':
    'Likely causes: the module nvidia-uvm is not loaded or stopped after the machine slept ' +
    '(nvidia-modprobe -u, or reload it), or the GPU has failed. Check dmesg for NVRM: Xid messages.',
  'cuIpcOpenMemHandle_v2:1':
    'Likely causes: the exporter freed the memory before it was opened here, or the handle was ' +
    'changed, or comes from another machine.',
  'cuIpcOpenMemHandle_v2:201':
    'Likely causes: the handle was made by this very process, or by a process of another ' +
    'container whose pid number is the same as this one’s (run the containers with one pid ' +
    'namespace, or give them different pid numbers).',
  'cuIpcOpenMemHandle_v2:400':
    'Likely causes: the process that exported the memory has ended (it must live until the memory ' +
    'was opened), or another context of this process has it open on the same device (only one can).',
  'cuIpcOpenEventHandle:201': 'The event was made by this very process: use it directly.',
  'cuIpcOpenEventHandle:400':
    'Likely causes: the process that exported the event has ended, or the processes do not share ' +
    '/dev/shm (containers: give them one, e.g. --ipc=host), or this is WSL.',
  'cuMemPoolImportFromShareableHandle:1':
    'The file descriptor that arrived with it does not belong to a memory pool.',
  'cuMemPoolImportPointer:1':
    'Likely causes: the memory belongs to another pool, or its descriptor was changed or invented.',
  'cuMemImportFromShareableHandle:1':
    'A file descriptor that arrived with it does not belong to virtual memory.',
  'cuModuleGetFunction:500':
    'C++ mangles the names of kernels: declare the kernel extern "C", or use the name in the PTX.',
  'cuModuleGetGlobal_v2:500':
    'C++ mangles names in namespaces, and a static variable that nothing uses is left out.',
  'cuModuleLoadDataEx:200':
    'The driver recognizes neither PTX, a cubin nor a fatbin. PTX begins with .version; machine ' +
    'code may be damaged. Use compile() for CUDA C++, and Module.fromFile() for a file.',
  'cuModuleLoadDataEx:801':
    'The emulated driver only loads PTX text, and cubins of registered kernels: see registerKernel.',
  'cuLaunchKernelEx:801':
    'This device or driver does not support it. The emulated driver runs the function that was ' +
    'passed to registerKernel under the name of the kernel; cooperative grids and clusters need a GPU.',
  'cuLinkCreate_v2:801': NEEDS_GPU,
  'cuOccupancyMaxActiveBlocksPerMultiprocessor:801': NEEDS_GPU,
  'cuOccupancyMaxActiveClusters:801': NEEDS_GPU,
  'cuOccupancyMaxPotentialBlockSize:801': NEEDS_GPU,
  'cuOccupancyMaxPotentialClusterSize:801': NEEDS_GPU,
  'cuIpcGetMemHandle:1':
    'Only memory from cuMemAlloc has a legacy IPC handle: not pool, managed, pinned or virtual memory, nor freed memory.',
};

/** By the status alone. */
export const BY_STATUS: ReadonlyMap<CUresult, string> = new Map([
  [2, 'Close buffers that are no longer needed, or ask for less.'],
  [3, 'The driver was not initialized: create objects with cuffi, which initializes it.'],
  [34, 'This libcuda is the stub of the CUDA toolkit: remove its folder from the library path.'],
  [36, 'The installed driver is too old for this function: update it.'],
  [
    100,
    'No GPU is visible: check nvidia-smi, CUDA_VISIBLE_DEVICES, and that the container has access to GPUs.',
  ],
  [
    46,
    'Another process has exclusive use of the device (its compute mode), or it is being reset: ' +
      'nvidia-smi shows which process, and nvidia-smi -c DEFAULT lets several use it.',
  ],
  [101, 'cuffi.devices() lists the devices that this process can see.'],
  [200, 'The file is damaged, or is not PTX, a cubin or a fatbin.'],
  [
    209,
    'It contains neither code for this GPU nor PTX: compile it for compute capability ' +
      '`device.computeCapability`, or to PTX of that or an older one.',
  ],
  [218, 'The log names the line. PTX for a newer GPU than this one fails, too.'],
  [221, 'libnvidia-ptxjitcompiler is missing: install the complete driver, or load a cubin.'],
  [
    222,
    'The PTX is newer than the driver: update the driver, compile with a toolkit of the same version ' +
      '(`driverVersion()`), or load a cubin.',
  ],
  [701, 'Use fewer threads per block, or compile with fewer registers: `jit: { maxRegisters }`.'],
  [709, 'The context was destroyed or reset: create its objects again.'],
  [720, 'A cooperative grid must fit on the device at once: `kernel.maxCooperativeBlocks(block)`.'],
  [801, 'This device or driver does not support it.'],
  [802, 'The system is not ready: the fabric manager or a GPU reset may be pending.'],
  [304, 'The operating system refused a call of the driver: check ulimit, /dev/shm and dmesg.'],
  [803, 'The kernel driver and libcuda differ in version: reload the driver, or reboot.'],
  [
    804,
    'This libcuda comes from the forward compatibility package (cuda-compat), which this GPU does not ' +
      'support: remove its folder from LD_LIBRARY_PATH, or update the driver of the host.',
  ],
  [
    900,
    'A captured stream only records work: wait, query and copy to the host outside the capture.',
  ],
  [901, 'A call that cannot be captured ended the capture: capture again without that call.'],
  [904, 'Join the forked streams: let the captured stream wait for an event of each.'],
  [906, 'Capture a stream that was created with nonBlocking: true.'],
  [910, 'Only arguments and sizes can change: create another graph for other work.'],
  [912, '`kernel.maxClusterBlocks(block)` returns how large a cluster can be.'],
  [999, 'Check dmesg for NVRM: Xid messages.'],
]);

/** Returns the hint for a `status` that `call` returned, if there is one. */
export function hintFor(call: string, status: CUresult): string | undefined {
  const hint =
    BY_CALL[`${call}:${status}`] ??
    (isSticky(status)
      ? `The context is lost: every later call in it fails. ${suspect()}End this process and start another.`
      : BY_STATUS.get(status));
  const refused = call === 'cuInit' ? refusedDeviceFiles() : undefined;
  return refused && hint ? `${refused}\n${hint}` : (refused ?? hint);
}

/** Which work may have had the fault: a launch returns before its kernel has run. */
const suspect = (): string =>
  recentWork.kernel === undefined
    ? ''
    : 'An earlier kernel may have caused it; the last one launched was ' +
      `${recentWork.kernel}. With CUDA_LAUNCH_BLOCKING=1 the launch itself reports it. `;

// ---- The device files, by which the driver reaches a GPU ----

/** Opens a file for reading and writing, and closes it. @throws as node:fs */
const tryToOpen = (path: string): void =>
  closeSync(openSync(path, constants.O_RDWR | constants.O_NONBLOCK));

/**
 * Says which device files of NVIDIA this process may not open: the driver only says that it found no
 * device, or that the system refused a call.
 *
 * @param open tries to open a file, and throws as node:fs
 */
export function refusedDeviceFiles(folder = '/dev', open = tryToOpen): string | undefined {
  const refused = deviceFiles(folder).filter((path) => {
    try {
      open(path);
      return false;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      return code === 'EACCES' || code === 'EPERM';
    }
  });
  if (refused.length === 0) return undefined;
  const user = effectiveUid();
  return (
    `User ${user} has no permission to open ${refused.join(', ')}: add the user to the group of the ` +
    'files (ls -l /dev/nvidia*), or give the container the devices (--gpus all, --device).'
  );
}

function deviceFiles(folder: string): string[] {
  try {
    return readdirSync(folder)
      .filter((name) => /^nvidia(ctl|-uvm|\d+)$/.test(name))
      .sort()
      .map((name) => join(folder, name));
  } catch {
    return [];
  }
}

/** What a caller may do about a status, by number and, where it matters, by call. */
import type { CUresult } from '../ffi/results.ts';
import { isSticky } from './errors.ts';

const NEEDS_GPU =
  'This device or driver cannot do it. The emulated driver never does: it needs a GPU.';

const BY_CALL: Readonly<Record<string, string>> = {
  'cuIpcOpenMemHandle_v2:1':
    'Likely causes: the exporter freed the memory before it was opened here, or the handle was ' +
    'altered or made on another machine.',
  'cuIpcOpenMemHandle_v2:201':
    'Likely causes: the handle was made by this very process, or by a process of another ' +
    'container whose pid number is the same as this one’s (run the containers with one pid ' +
    'namespace, or give them different pid numbers).',
  'cuIpcOpenMemHandle_v2:400':
    'Likely causes: the process that exported the memory has ended (it must live until the memory ' +
    'was opened), or another context of this process has it open on the same device (one may).',
  'cuIpcOpenEventHandle:201': 'The event was made by this very process: use it directly.',
  'cuIpcOpenEventHandle:400':
    'Likely causes: the process that exported the event has ended, or the processes do not share ' +
    '/dev/shm (containers: give them one, e.g. --ipc=host), or this is WSL.',
  'cuMemPoolImportFromShareableHandle:1':
    'The file descriptor that came with it is not that of a memory pool.',
  'cuMemPoolImportPointer:1':
    'Likely causes: it is memory of another pool, or what names it was altered or made up.',
  'cuMemImportFromShareableHandle:1':
    'A file descriptor that came with it is not that of virtual memory.',
  'cuModuleGetFunction:500':
    'C++ mangles the names of kernels: declare the kernel extern "C", or use the name in the PTX.',
  'cuModuleGetGlobal_v2:500':
    'C++ mangles names in namespaces, and a static variable that nothing uses is left out.',
  'cuModuleLoadDataEx:200':
    'As the driver sees it this is neither PTX, a cubin nor a fatbin: PTX begins with .version; ' +
    'machine code may be damaged. CUDA C++ goes through compile() first, a file through ' +
    'Module.fromFile().',
  'cuModuleLoadDataEx:801':
    'The emulated driver loads PTX text, and cubins of registered kernels: see registerKernel.',
  'cuLaunchKernelEx:801':
    'This device or driver cannot do it. The emulated driver runs what registerKernel was given ' +
    'for the name of the kernel; cooperative grids and clusters need a GPU.',
  'cuLinkCreate_v2:801': NEEDS_GPU,
  'cuOccupancyMaxActiveBlocksPerMultiprocessor:801': NEEDS_GPU,
  'cuOccupancyMaxActiveClusters:801': NEEDS_GPU,
  'cuOccupancyMaxPotentialBlockSize:801': NEEDS_GPU,
  'cuOccupancyMaxPotentialClusterSize:801': NEEDS_GPU,
  'cuIpcGetMemHandle:1':
    'Only memory of cuMemAlloc has a legacy IPC handle: not pool, managed, pinned or virtual memory, nor freed memory.',
};

const BY_STATUS: ReadonlyMap<CUresult, string> = new Map([
  [2, 'Close buffers that are no longer needed, or ask for less.'],
  [3, 'The driver was not initialised: make objects through cuffi, which does it.'],
  [34, 'This libcuda is the stub of the CUDA toolkit: take its folder out of the library path.'],
  [36, 'The installed driver is too old for this function: update it.'],
  [
    100,
    'No GPU is visible: check nvidia-smi, CUDA_VISIBLE_DEVICES, and that a container was started with GPUs.',
  ],
  [101, 'cuffi.devices() lists the devices that this process can see.'],
  [200, 'The file is damaged, or is no PTX, cubin or fatbin.'],
  [
    209,
    'It has no code for this GPU, nor PTX to make some of: compile it for compute capability ' +
      '`device.computeCapability`, or to PTX of that or an older one.',
  ],
  [218, 'The log names the line. PTX for a newer GPU than this one is refused, too.'],
  [221, 'libnvidia-ptxjitcompiler is missing: install the whole driver, or load a cubin.'],
  [
    222,
    'The PTX is newer than the driver: update the driver, compile with the toolkit of its version ' +
      '(`driverVersion()`), or load a cubin.',
  ],
  [701, 'Use fewer threads a block, or compile with fewer registers: `jit: { maxRegisters }`.'],
  [709, 'The context was destroyed or reset: make its objects anew.'],
  [720, 'A cooperative grid must fit on the device at once: `kernel.maxCooperativeBlocks(block)`.'],
  [801, 'This device or driver cannot do it.'],
  [802, 'The system is not ready: the fabric manager or a GPU reset may be pending.'],
  [803, 'The kernel driver and libcuda differ in version: reboot, or reload the driver.'],
  [
    900,
    'A stream that is captured into a graph only queues: wait, ask and copy to the host outside.',
  ],
  [901, 'A call that cannot be captured has ended the capture: capture again without it.'],
  [904, 'Streams that were forked off must be joined: let the captured stream wait for an event.'],
  [906, 'Capture a stream that is made with nonBlocking: true.'],
  [910, 'Only arguments and sizes can change: make another graph for other work.'],
  [912, 'How large a cluster can be, `kernel.maxClusterBlocks(block)` says.'],
  [999, 'Check dmesg for NVRM: Xid messages.'],
]);

/** The advice for `status` as the answer of `call`, if there is any. */
export const hintFor = (call: string, status: CUresult): string | undefined =>
  BY_CALL[`${call}:${status}`] ??
  (isSticky(status)
    ? 'The context is lost: every later call in it fails. End this process and start another.'
    : BY_STATUS.get(status));

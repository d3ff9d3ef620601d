/** What to do about each cause, for one process and for two. */

import { remedies as remediesOfSharing } from '../../ipc/sharing/blockers.ts';

export const remedies = {
  ...remediesOfSharing,
  driver:
    'Install the NVIDIA driver. A container needs GPUs (--gpus all) and NVIDIA_DRIVER_CAPABILITIES with compute.',
  pidNamespace:
    'Run the containers in one pid namespace (--pid=host, --pid=container:NAME), or share pools or virtual memory over a connection.',
  sharedMemory:
    'Give the containers one /dev/shm (--ipc=host, --ipc=container:NAME), or order work by timelines, which need none.',
  sharedMemorySize: 'Give the container more: --shm-size=1g, or --ipc=host.',
  otherUser:
    'Run both as one user; or listen at a path with { allowOtherUsers: true } or { allow }, if that user is trusted.',
  otherDevice:
    'Show both the same GPU (CUDA_VISIBLE_DEVICES, --gpus). Ordinals differ between processes; UUIDs do not.',
  computeMode: 'Admit several processes: nvidia-smi -c DEFAULT.',
  peerAccess:
    'Open memory on the GPU of its owner, which is the default, or copy it to the other GPU.',
  ptrace:
    'Send file descriptors through a socket, as cuffi does. Programs that take them from another process (PyTorch with expandable segments) need --cap-add=SYS_PTRACE, or kernel.yama.ptrace_scope=0.',
  yama: 'Send file descriptors through a socket, as cuffi does. With Yama 3 no process takes them from another one until the next boot.',
  expandableSegments:
    'Turn expandable_segments off in the process whose tensors are shared, or copy into a pool of cuffi.',
  mps: 'Start the daemon (nvidia-cuda-mps-control -d), and give its clients its ipc namespace (--ipc=host) and CUDA_MPS_PIPE_DIRECTORY.',
  fabric:
    'Start the IMEX service, which makes the channels; within one machine file descriptors do.',
  slow: 'A library that falls back to TCP is as slow: look at pid namespaces, and at expandable_segments in PYTORCH_CUDA_ALLOC_CONF.',
  noHandle:
    'Share such memory in its own way: a pool by its file descriptor (exportIpc), pinned memory by a connection; copy managed memory into device memory.',
} as const;

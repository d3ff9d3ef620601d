"""`python -m cuffi doctor`: what this process has that sharing needs. `npx cuffi doctor` also tries each kind."""

from __future__ import annotations

import importlib.metadata
import os
import resource
from collections.abc import Iterator
from typing import NamedTuple, Optional

from ._devices import all_devices, format_uuid
from ._errors import CuffiError


class Finding(NamedTuple):
    """One line of the report."""

    name: str
    fact: str
    # Whether sharing works so, as far as this process can tell.
    is_ok: bool = True
    remedy: str = ''

    def lines(self) -> list[str]:
        return [f'{self.name}: {self.fact}', *([f'  → {self.remedy}'] if self.remedy else [])]


def findings() -> list[Finding]:
    return [*_driver(), *_container(), *_limits(), *_libraries(), *_environment()]


def _driver() -> Iterator[Finding]:
    chosen = os.environ.get('CUFFI_DRIVER') or 'cuda'
    try:
        devices = all_devices()
    except (CuffiError, ValueError) as error:
        yield Finding('driver', chosen)
        yield Finding(getattr(error, 'code', 'invalid setting'), str(error), False)
        return
    yield Finding('driver', 'emulated, no GPU is used' if chosen == 'emulated' else chosen)
    for device in devices:
        yield Finding(f'device {device.ordinal}', f'{device.name}, {format_uuid(device.uuid)}')


def _container() -> Iterator[Finding]:
    marks = [path for path in ('/.dockerenv', '/run/.containerenv') if os.path.exists(path)]
    yield Finding('container', f'yes: {marks[0]}' if marks else 'no sign of one')
    namespaces = ', '.join(f'{name} {_namespace(name)}' for name in ('pid', 'ipc', 'mnt'))
    is_low = bool(marks) and os.getpid() < 100
    yield Finding('own pid', f'{os.getpid()}, namespaces: {namespaces}', True,
                  'Other containers have a process of that number, too, and plain memory and events fail between equal numbers: run the '
                  'containers with one pid namespace.' if is_low else '')  # fmt: skip
    try:
        found = os.statvfs('/dev/shm')
        free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        yield Finding('/dev/shm', f'{free >> 20} MiB free of {size >> 20} MiB', free >= 1 << 20, '' if free >= 1 << 20 else _MORE_SHM)
    except OSError:
        yield Finding('/dev/shm', 'there is none: events cannot be shared', False, _MORE_SHM)
    release = os.uname().release
    if 'microsoft' in release.lower():
        yield Finding('WSL', f'Linux {release}: WSL has no CUDA IPC', False, 'Run both processes under Linux itself, or copy the data.')


_MORE_SHM = 'Give the container a larger /dev/shm: --shm-size=1g, or --ipc=host.'


def _namespace(name: str) -> str:
    try:
        return str(os.stat(f'/proc/self/ns/{name}').st_ino)
    except OSError:
        return '?'


def _limits() -> Iterator[Finding]:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = len(os.listdir('/proc/self/fd'))
    has_room = most == resource.RLIM_INFINITY or most - count >= 256
    limit = 'any number' if most == resource.RLIM_INFINITY else str(most)
    yield Finding(
        'descriptors', f'{count} open, at most {limit}', has_room, '' if has_room else 'Objects that arrive need some: ulimit -n 65536.'
    )


def _libraries() -> Iterator[Finding]:
    for name in ('torch', 'cupy-cuda12x', 'cupy-cuda13x', 'cupy', 'numba', 'cuda-core', 'jax', 'numpy', 'ml_dtypes'):
        found = _version_of(name)
        if found is not None:
            yield Finding(name, found)


def _version_of(name: str) -> Optional[str]:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _environment() -> Iterator[Finding]:
    for name in ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_MAX_CONNECTIONS', 'CUDA_MPS_PIPE_DIRECTORY', 'CUDA_LAUNCH_BLOCKING'):
        if name in os.environ:
            yield Finding(name, repr(os.environ[name]))
    for name in ('PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF'):
        setting = os.environ.get(name, '')
        if setting:
            is_ok = 'expandable_segments:true' not in setting.replace(' ', '').lower()
            yield Finding(
                name, repr(setting), is_ok, '' if is_ok else 'Such tensors have no handle: unset it, or send memory of cuffi.empty().'
            )

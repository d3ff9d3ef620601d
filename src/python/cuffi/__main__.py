"""`python -m cuffi`: which cuffi this is, and whether it finds a GPU."""

from __future__ import annotations

import os
import sys

import cuffi

from . import _devices, _protocol, _wire

_USAGE = """usage: python -m cuffi COMMAND

  version   the version, where the package is, and which versions of the protocol it speaks
  doctor    also the driver and its devices, or why there are none"""


def _version() -> list[str]:
    return [
        _wire.package_name(),
        f'protocol: {_wire.versions_text(_protocol.MIN_VERSION, _protocol.MAX_VERSION)}',
        f'Python {sys.version.split()[0]} in {sys.executable}',
    ]


def _doctor() -> bool:
    """Prints what was found. Returns whether there is a device."""
    chosen = os.environ.get('CUFFI_DRIVER') or 'cuda'
    try:
        devices = [f'device {device.ordinal}: {device.name}, {_devices.format_uuid(device.uuid)}' for device in _devices.all_devices()]
    except (cuffi.CuffiError, ValueError) as error:
        print(f'driver: {chosen}\n{getattr(error, "code", "invalid setting")}: {error}')
        return False
    print('\n'.join(['driver: emulated, no GPU is used' if chosen == 'emulated' else f'driver: {chosen}', *devices]))
    return True


def main(arguments: list[str]) -> int:
    if arguments not in (['version'], ['doctor']):
        is_asked = arguments in (['help'], ['--help'], ['-h'])
        print(_USAGE, file=sys.stdout if is_asked else sys.stderr)
        return 0 if is_asked else 2
    print('\n'.join(_version()))
    return 0 if arguments == ['version'] or _doctor() else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

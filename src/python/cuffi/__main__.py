"""`python -m cuffi`: which cuffi this is, whether it finds a GPU, and what an error means."""

from __future__ import annotations

import sys

from ._doctor import findings
from ._explain import explain
from ._protocol import MAX_VERSION, MIN_VERSION
from ._wire import package_name, versions_text

_USAGE = """usage: python -m cuffi COMMAND

  version        the version, where the package is, and which versions of the protocol it speaks
  doctor         also the driver and its devices, or why there are none, and what this process has that
                 sharing needs. `npx cuffi doctor` also tries each kind of sharing
  explain TEXT   what an error means: a status of the driver (2, CUDA_ERROR_OUT_OF_MEMORY), a code of cuffi
                 (exporter-gone), or a message that names some; - reads it from stdin. `npx cuffi explain`
                 explains descriptors

Exit code: 0 if all is well, 1 if not (doctor: sharing lacks something; explain: nothing is known), 2 for wrong use."""


def _version() -> list[str]:
    return [
        package_name(),
        f'protocol: {versions_text(MIN_VERSION, MAX_VERSION)}',
        f'Python {sys.version.split()[0]} in {sys.executable}',
    ]


def _print(lines: list[str]) -> None:
    print('\n'.join(lines))


def _explain(given: str) -> int:
    text = sys.stdin.read() if given == '-' else given
    if text.lstrip().startswith('{'):
        print('a descriptor is explained by: npx cuffi explain DESCRIPTOR', file=sys.stderr)
        return 2
    lines = explain(text)
    if not lines:
        print(
            f'{text.strip()[:200]!r} names no status of the driver and no code of cuffi: docs/troubleshooting.md has messages',
            file=sys.stderr,
        )
        return 1
    _print(lines)
    return 0


def main(arguments: list[str]) -> int:
    if arguments == ['version']:
        _print(_version())
        return 0
    if arguments == ['doctor']:
        found = findings()
        _print([*_version(), *(line for each in found for line in each.lines())])
        return 0 if all(each.is_ok for each in found) else 1
    if len(arguments) == 2 and arguments[0] == 'explain':
        return _explain(arguments[1])
    is_asked = arguments in (['help'], ['--help'], ['-h'])
    print(_USAGE, file=sys.stdout if is_asked else sys.stderr)
    return 0 if is_asked else 2


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))

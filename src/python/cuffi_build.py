"""Builds the wheel of the package: pip calls it (PEP 517, PEP 660), and cuffi's own release.

A wheel of pure Python is a zip of its files with a list of their hashes. So this needs no build tool, and
`pip install` works without a network.
"""

import base64
import hashlib
import os
import re
import zipfile

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SUMMARY = 'Share GPU memory with Node processes, and between Python processes, without copying it.'
_METADATA = """\
Metadata-Version: 2.1
Name: cuffi
Version: {version}
Summary: {summary}
Home-page: https://github.com/cuffi/cuffi
License: MIT
Requires-Python: >=3.9
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Environment :: GPU :: NVIDIA CUDA
Classifier: Typing :: Typed
Description-Content-Type: text/markdown

The companion for Python of the npm package [cuffi](https://github.com/cuffi/cuffi), which has its documents in
`docs/python.md`. It needs Linux and no other package. Without a GPU, set `CUFFI_DRIVER=emulated`.
"""
_WHEEL = 'Wheel-Version: 1.0\nGenerator: cuffi_build\nRoot-Is-Purelib: true\nTag: py3-none-any\n'


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel into a folder and returns its name."""
    return _write(wheel_directory, list(_modules()))


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes a wheel that only names this folder, so that changes here need no further installation."""
    return _write(wheel_directory, [('cuffi.pth', (_FOLDER + '\n').encode())])


def version():
    """The version of the package, which is that of the npm package."""
    found = re.search(r"^__version__ = '([^']+)'$", _read('cuffi', '_version.py').decode(), re.MULTILINE)
    return found.group(1)


def _modules():
    for folder, folders, names in os.walk(os.path.join(_FOLDER, 'cuffi')):
        folders[:] = sorted(each for each in folders if each != '__pycache__')
        for name in sorted(names):
            if name.endswith(('.py', '.typed')):
                path = os.path.relpath(os.path.join(folder, name), _FOLDER)
                yield path.replace(os.sep, '/'), _read(path)


def _read(*path):
    with open(os.path.join(_FOLDER, *path), 'rb') as file:
        return file.read()


def _write(folder, files):
    info = f'cuffi-{version()}.dist-info'
    files.append((f'{info}/METADATA', _METADATA.format(version=version(), summary=_SUMMARY).encode()))
    files.append((f'{info}/WHEEL', _WHEEL.encode()))
    license = os.path.join('..', '..', 'LICENSE')
    if os.path.exists(os.path.join(_FOLDER, license)):
        files.append((f'{info}/LICENSE', _read(license)))
    record = ''.join(f'{name},sha256={_digest(data)},{len(data)}\n' for name, data in files)
    files.append((f'{info}/RECORD', f'{record}{info}/RECORD,,\n'.encode()))
    wheel = f'cuffi-{version()}-py3-none-any.whl'
    with zipfile.ZipFile(os.path.join(folder, wheel), 'w') as archive:
        for name, data in files:
            # With a fixed date, the same files make the same wheel.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return wheel


def _digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()

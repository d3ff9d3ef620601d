"""Refuses systems on which the package cannot work, before it imports modules that they lack."""

import sys

if not sys.platform.startswith('linux'):
    raise ImportError(
        f'cuffi needs Linux, and this is {sys.platform}: GPU memory is shared by means that only Linux has. On Windows, use WSL 2'
    )
if sys.version_info < (3, 9):  # noqa: UP036 - this is what refuses them.
    raise ImportError(f'cuffi needs Python 3.9 or later, and this is {sys.version.split()[0]}')
if not getattr(sys, '_is_gil_enabled', lambda: True)():
    raise ImportError('cuffi relies on the GIL, and this Python runs without it: start it with PYTHON_GIL=1, or with -X gil=1')

"""What to run if two ends have different versions of cuffi: one command, and where."""

from __future__ import annotations

import os
import re
import shlex
from typing import Optional

# What an end says that it is: see `_package`, and packageName() in Node.
_PACKAGE = re.compile(r'cuffi (\d+\.\d+\.\d+(?:-[\w.]+)?) (for Python )?in (.+)', re.ASCII)
# What a shell takes as it is. The other end's words are not trusted.
_PLAIN_PATH = re.compile(r'/[\w./@+-]*', re.ASCII)


def remedy(own: str, theirs: Optional[bytes], is_newer: bool) -> str:
    """Returns the end of the error's message.

    `theirs` are the other end's words, or None. `is_newer` tells whether the other end speaks later versions
    of the protocol.
    """
    here, there = _parse(own), _parse((theirs or b'').decode('utf-8', 'replace'))
    # Python takes the version of Node, whose package has both. Two ends of one kind take the later version.
    changes_here = is_newer if here[1] == there[1] else here[1]
    changed, kept = (here, there) if changes_here else (there, here)
    version = kept[0] or 'latest'
    _, is_python, path = changed
    if not is_python or '/node_modules/' in path:
        command = f'npm install cuffi@{version}'
    elif '/site-packages/' in path or '/dist-packages/' in path:
        command = f'pip install "$(npx cuffi@{version} python)"'
    else:
        folder = os.path.dirname(path)
        is_safe = changes_here or _PLAIN_PATH.fullmatch(folder)
        command = f'npx cuffi@{version} python --copy {shlex.quote(folder) if is_safe else "FOLDER"}'
    return f'Install the same version of cuffi on both sides. Run {"here" if changes_here else "there"}: {command}'


def _parse(text: str) -> tuple[str, bool, str]:
    """The version, whether it is for Python, and the path. Of an end that says nothing, Node is assumed."""
    found = _PACKAGE.match(text)
    return (found.group(1), bool(found.group(2)), found.group(3)) if found else ('', False, '')

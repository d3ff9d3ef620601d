"""`python -m cuffi explain`: what a status, a code or the message of an error means, and what to do."""

from __future__ import annotations

import re

from ._driver import STICKY, cuda_driver, describe_status
from ._error_texts import CODES, HINTS, HINTS_OF_CALLS, STATUSES
from ._errors import CuffiError

_NUMBERS = {name: status for status, name in STATUSES.items()}


def explain(text: str) -> list[str]:
    """Returns lines about each status and each code that a text names: a number, a name, a code, or a message. Empty if none is known.

    Codes of one word, such as `closed`, count only if they are the whole text.
    """
    text = text.strip()
    if text.isdigit():
        return _about_status(int(text), '')
    if text in CODES:
        return _about_code(text)
    call = next(iter(re.findall(r'\bcu[A-Z]\w*', text)), '')
    lines = [
        line for name in dict.fromkeys(re.findall(r'\bCUDA_\w+', text)) if name in _NUMBERS for line in _about_status(_NUMBERS[name], call)
    ]
    for code in dict.fromkeys(re.findall('[a-z]+(?:-[a-z]+)+', text)):
        if code in CODES:
            lines += _about_code(code)
    return lines


def _about_code(code: str) -> list[str]:
    return [f'{code}: {CODES[code]}']


def _about_status(status: int, call: str) -> list[str]:
    name = STATUSES.get(status)
    if name is None:
        return []
    try:
        _, description = describe_status(status, cuda_driver())
    except (CuffiError, ValueError):
        description = 'unknown error'  # Without a driver, or with a setting that names none.
    hints = [f'  {HINTS[status]}'] if status in HINTS else []
    if status in STICKY:
        hints.append('  The context is lost: every later call in it fails. End this process and start another.')
    for key, hint in HINTS_OF_CALLS.items():
        known, _, number = key.rpartition(':')
        if number == str(status) and call in ('', known):
            hints.append(f'  {known}: {hint}')
    return [f'{name} ({status})' + ('' if description == 'unknown error' else f': {description}'), *hints]

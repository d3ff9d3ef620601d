"""The errors of cuffi, but for those of the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional


class CuffiError(Exception):
    """The base of all errors of cuffi. `code` tells what kind it is, as in Node."""

    __module__ = 'cuffi'

    code = 'invalid-state'

    def __reduce__(self) -> tuple[Any, ...]:
        # Not by the arguments of `__init__`, which are not kept: a copy, and what multiprocessing sends, has the text and the fields.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[CuffiError], args: tuple[Any, ...], fields: dict[str, Any]) -> CuffiError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class DriverNotFoundError(CuffiError):
    """No CUDA driver could be opened."""

    __module__ = 'cuffi'

    code = 'driver-not-found'


class NotSupportedError(CuffiError):
    """The companion, the device or the driver does not support what was requested."""

    __module__ = 'cuffi'

    code = 'not-supported'


class ClosedError(CuffiError):
    """An object was used after it was closed."""

    __module__ = 'cuffi'

    code = 'closed'


class IpcError(CuffiError):
    """Something of another process cannot be used. `code` tells why, as in Node."""

    __module__ = 'cuffi'

    def __init__(self, message: str, code: str = 'ipc-failed') -> None:
        super().__init__(message)
        self.code = code


class PeerGoneError(CuffiError):
    """The process at the other end ended without closing the connection."""

    __module__ = 'cuffi'

    code = 'peer-gone'

    def __init__(self, message: str, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid


class RemoteError(CuffiError):
    """An error of the other end: what its handler threw, or an error that was sent as a value."""

    __module__ = 'cuffi'

    def __init__(self, message: str, name: str = 'Error', code: str = 'remote-error', stack: Optional[str] = None,
                 errors: Sequence[Any] = ()) -> None:  # fmt: skip
        super().__init__(message)
        self.message = message
        self.name = name
        self.code = code
        self.stack = stack
        self.errors: list[Any] = list(errors)

    def __str__(self) -> str:
        return f'{self.name}: {self.message}'

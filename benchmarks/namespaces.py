"""Network namespaces of a benchmark's own: a private network for the whole run, one more for each remote machine.

A namespace lives as long as our descriptor of it: nothing stays behind, however the run ends.
"""

import ctypes
import os
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from recovery.errors import UnbrokenError

_CLONE_NEWNET = 0x40000000
_SELF = "/proc/thread-self/ns/net"
_TIMEOUT_S = 10
_MEND = (
    "run it as root, or without privileges as `unshare --map-root-user --net .venv/bin/python -m benchmarks …` "
    "where the system allows that"
)

_libc = ctypes.CDLL(None, use_errno=True)


class NamespacesRefused(UnbrokenError):
    """This process may not make network namespaces."""


class Namespace:
    """Another network, empty but for its loopback interface; `close` gives it up."""

    def __init__(self) -> None:
        """Make it. Raises NamespacesRefused."""
        home = os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _unshare()
            try:
                self._fd = os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC)
            finally:
                _setns(home)
        finally:
            os.close(home)
        ip("link", "set", "lo", "up", inside=self)

    @property
    def path(self) -> str:
        """What `ip` and `nsenter` know it by."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` in it, as the same process."""
        return ["nsenter", f"--net={self.path}", "--", *argv]

    @contextmanager
    def entered(self) -> Generator[None]:
        """Have this thread act in it: sockets and devices made now stay there."""
        home = os.open(_SELF, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(self._fd)
            try:
                yield
            finally:
                _setns(home)
        finally:
            os.close(home)

    def close(self) -> None:
        """Give it up; it ends with the last process in it."""
        os.close(self._fd)


def enter_private_network() -> None:
    """Move this thread, and all it starts from now on, into a network of its own. Raises NamespacesRefused.

    Call it before other threads exist: they would stay outside.
    """
    _unshare()
    ip("link", "set", "lo", "up")


def ip(*arguments: str, inside: Namespace | None = None) -> None:
    """Run `ip`, here or in a namespace. Raises NamespacesRefused with what it said."""
    argv = ["ip", *arguments]
    try:
        subprocess.run(
            inside.command(argv) if inside else argv,
            check=True,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
    except FileNotFoundError as error:
        raise NamespacesRefused(f"{error.filename} is missing: install iproute2 and util-linux") from error
    except subprocess.CalledProcessError as error:
        raise NamespacesRefused(f"`{' '.join(argv)}` failed: {error.stderr.strip()}; {_MEND}") from error


def _unshare() -> None:
    if _libc.unshare(_CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise NamespacesRefused(f"no network namespace can be made ({reason}): {_MEND}")


def _setns(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET) != 0:
        raise NamespacesRefused(f"a network namespace cannot be entered: {os.strerror(ctypes.get_errno())}")

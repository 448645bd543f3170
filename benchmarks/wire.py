"""A link to a namespace that can be cut: interface down, or up and every packet lost on the way."""

import fcntl
import socket
import struct
from typing import Literal

from benchmarks.namespaces import Namespace, ip

Cut = Literal["dropped", "black_holed"]
_INNER = "eth0"
_NOBODY = bytes.fromhex("020000000099")
"""No interface has this hardware address: a frame sent to it leaves, and nobody takes it."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1
_SIOCSARP, _SIOCDARP, _ATF_COM, _ATF_PERM, _ARPHRD_ETHER = 0x8955, 0x8953, 0x2, 0x4, 1


class Wire:
    """A veth pair between this thread's network and a namespace of its own."""

    def __init__(self, number: int) -> None:
        """Lay it, in 10.79.`number`.0/30. Raises NamespacesRefused."""
        self.space = Namespace()
        outer = f"unbroken{number}"
        self.here, self.there = f"10.79.{number}.1", f"10.79.{number}.2"
        try:
            ip("link", "add", outer, "type", "veth", "peer", "name", _INNER, "netns", self.space.path)
            ip("address", "add", f"{self.here}/30", "dev", outer)
            ip("link", "set", outer, "up")
            ip("address", "add", f"{self.there}/30", "dev", _INNER, inside=self.space)
            ip("link", "set", _INNER, "up", inside=self.space)
            self._near = _End(outer, other=self.there)
            with self.space.entered():
                self._far = _End(_INNER, other=self.here)
        except BaseException:
            self.space.close()
            raise

    def cut(self, how: Cut) -> None:
        """Cut it; nothing gets through once this returns."""
        if how == "dropped":
            self._far.switch(up=False)
        else:
            self._near.mislead()
            self._far.mislead()

    def mend(self, how: Cut) -> None:
        """Undo the cut."""
        if how == "dropped":
            self._far.switch(up=True)
        else:
            self._near.lead()
            self._far.lead()

    def close(self) -> None:
        """Take it away."""
        self._near.close()
        self._far.close()
        self.space.close()


class _End:
    """One interface. The kernel is spoken to directly: starting `ip` takes longer than a cut may."""

    def __init__(self, name: str, other: str) -> None:
        self._name = name.encode()
        self._other = socket.inet_aton(other)
        # It acts on the network it was made in, whoever uses it.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def switch(self, *, up: bool) -> None:
        asked = struct.pack("16sH22x", self._name, 0)
        _, flags = struct.unpack("16sH22x", fcntl.ioctl(self._socket, _SIOCGIFFLAGS, asked))
        flags = flags | _IFF_UP if up else flags & ~_IFF_UP
        fcntl.ioctl(self._socket, _SIOCSIFFLAGS, struct.pack("16sH22x", self._name, flags))

    def mislead(self) -> None:
        """Send everything to a hardware address that nobody has."""
        fcntl.ioctl(self._socket, _SIOCSARP, self._entry(_ATF_COM | _ATF_PERM))

    def lead(self) -> None:
        """Let the other end be found again."""
        fcntl.ioctl(self._socket, _SIOCDARP, self._entry(0))

    def close(self) -> None:
        self._socket.close()

    def _entry(self, flags: int) -> bytes:
        protocol = struct.pack("=HH4s8x", socket.AF_INET, 0, self._other)
        hardware = struct.pack("=H14s", _ARPHRD_ETHER, _NOBODY)
        return protocol + hardware + struct.pack("=i16x16s", flags, self._name)

"""A bad line: carries packets between two networks through this process, each delayed at random, some lost.

For kernels without netem; needs only /dev/net/tun. Packets overtake each other, as they do with netem.
"""

import argparse
import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field

from benchmarks.namespaces import Namespace, NamespacesRefused, ip

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET = 65_536
_BATCH = 64
"""Packets taken from one side before the other's turn."""
_HELD = 20_000
"""Packets under way at most; more are lost, as on any line."""
_NICE = -15
_END_S = 5


@dataclass(frozen=True, slots=True)
class Disturbance:
    """How bad a line is, in each direction."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    """Share of packets lost."""


@dataclass(slots=True)
class Carried:
    """What a relay did with the packets it saw."""

    packets: int = 0
    lost: int = 0
    delays_ms: list[float] = field(default_factory=list)
    """Achieved delay of every 50th packet that was carried."""


class BadLine:
    """The two ends of a disturbed line: one in this thread's network, one in a namespace of its own."""

    def __init__(self, seed: int) -> None:
        """Lay it, in 10.79.200.0/30; it is a good one so far. Raises NamespacesRefused."""
        self.here, self.there = "10.79.200.1", "10.79.200.2"
        self.space = Namespace()
        ends: list[int] = []
        try:
            ends.append(_tun("unbroken-near"))
            with self.space.entered():
                ends.append(_tun("unbroken-far"))
            ip("address", "add", f"{self.here}/30", "dev", "unbroken-near")
            ip("link", "set", "unbroken-near", "up")
            ip("address", "add", f"{self.there}/30", "dev", "unbroken-far", inside=self.space)
            ip("link", "set", "unbroken-far", "up", inside=self.space)
            self._relay = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.relay", *map(str, ends), str(seed)],
                pass_fds=ends,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except BaseException:
            self.space.close()
            raise
        finally:
            for end in ends:
                os.close(end)

    def disturb(self, *, delay_ms: float = 0.0, jitter_ms: float = 0.0, loss: float = 0.0) -> Carried:
        """Delay each packet by `delay_ms` ± `jitter_ms` from now on and lose the share `loss`, in each direction.

        Returns what was carried since the last such order.
        """
        assert self._relay.stdin is not None  # noqa: S101 - for the type checker: stdin=PIPE above
        assert self._relay.stdout is not None  # noqa: S101 - the same
        how = Disturbance(delay_ms / 1e3, jitter_ms / 1e3, loss)
        self._relay.stdin.write(json.dumps(asdict(how)).encode() + b"\n")
        self._relay.stdin.flush()
        ready, _, _ = select.select([self._relay.stdout], [], [], _END_S)
        said = self._relay.stdout.readline() if ready else b""
        if not said:
            raise NamespacesRefused("the relay ended, or does not answer")
        return Carried(**json.loads(said))

    def close(self) -> None:
        """Take it away."""
        try:
            self._relay.communicate(timeout=_END_S)  # it ends when its standard input does
        except subprocess.TimeoutExpired:
            self._relay.kill()
            self._relay.communicate()
        self.space.close()


def carry(ends: tuple[int, int], rng: random.Random, orders: int) -> None:
    """Carry packets between two TUN devices, as ordered line by line, until the descriptor `orders` ends.

    Each order is answered with what was carried before it.
    """
    how, carried = Disturbance(), Carried()
    held: list[tuple[float, int, float, int, bytes]] = []
    poll = select.poll()
    for descriptor in (*ends, orders):
        poll.register(descriptor, select.POLLIN)
    number = 0
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else 1.0
        ready = {descriptor for descriptor, _ in poll.poll(wait * 1e3)}
        if orders in ready:
            order = os.read(orders, _PACKET)
            if not order:
                return
            print(json.dumps(asdict(carried)), flush=True)
            how, carried = Disturbance(**json.loads(order.splitlines()[-1])), Carried()
        now = time.monotonic()
        while held and held[0][0] <= now:
            _, number_, came, end, packet = heapq.heappop(held)
            with contextlib.suppress(OSError):  # a full queue loses packets on any line
                os.write(end, packet)
            if number_ % 50 == 0:
                carried.delays_ms.append(round((now - came) * 1e3, 2))
        for end, other in (ends, ends[::-1]):
            for packet in _taken(end) if end in ready else ():
                number += 1
                carried.packets += 1
                if rng.random() < how.loss or len(held) >= _HELD:
                    carried.lost += 1
                    continue
                due = now + max(0.0, how.delay_s + rng.uniform(-how.jitter_s, how.jitter_s))
                heapq.heappush(held, (due, number, now, other, packet))


def _taken(end: int) -> list[bytes]:
    packets: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(packets) < _BATCH:
            packets.append(os.read(end, _PACKET))
    return packets


def _tun(name: str) -> int:
    """Make a TUN device in this thread's network."""
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NamespacesRefused(f"/dev/net/tun cannot be opened ({error.strerror}): it carries the line") from error
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError as error:
        os.close(descriptor)
        raise NamespacesRefused(f"no TUN device can be made: {error.strerror}") from error
    return descriptor


def main() -> None:
    """Carry until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ends", type=int, nargs=2)
    parser.add_argument("seed", type=int)
    options = parser.parse_args()
    with contextlib.suppress(OSError):
        # The line's delays are part of the set-up: a busy machine must not add to them.
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    near, far = options.ends
    carry((near, far), random.Random(options.seed), sys.stdin.fileno())


if __name__ == "__main__":
    main()

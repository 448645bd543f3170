"""How this gateway's streams feel each engine: when it last gave them a token, and whether it has fallen silent.

Pure: times are monotonic seconds, passed in. What is found is evidence for the sentinel, never a verdict.
"""

from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from api.tether import Tether

_ALPHA = 0.2
"""Weight of the newest gap in the usual one."""


@dataclass(frozen=True, slots=True)
class Stall:
    """All streams on an engine have stood still for unusually long."""

    node: str
    epoch: int
    streams: int
    """Those past their first token."""
    stood_s: float
    usual_s: float
    """The usual gap between two tokens of this engine here."""


class Pulse:
    """One engine (node, epoch) over all of this gateway's streams on it."""

    def __init__(self) -> None:
        self.tethers: set[Tether] = set()
        self.usual_s = 0.0
        self.heard = 0.0
        self._widest = 0.0
        self._told = 0.0
        """`heard` when it was last told of."""
        self._reported = -1.0
        """`heard` when a stall was last reported: once for each."""

    def fold(self, tether: Tether) -> None:
        """Take in what a stream has felt since the last look."""
        self.heard = max(self.heard, tether.heard)
        self._widest = max(self._widest, tether.widest)
        tether.widest = 0.0

    def fresh(self) -> bool:
        """Whether anything came since this was last asked."""
        told, self._told = self._told, self.heard
        return self.heard > told

    def look(self, now: float, awake_since: float, stall_s: float, factor: float) -> tuple[int, float] | None:
        """Learn the usual gap; return how many streams stand, and for how long, when that is worth a report.

        Counted is only time in which this gateway was awake and a stream past its first token waited.
        """
        asked, speaking = inf, 0
        for tether in self.tethers:
            self.fold(tether)
            if tether.speaks and tether.waits:
                asked, speaking = min(asked, tether.asked), speaking + 1
        if self._widest:
            # The widest gap between two looks: a batch gives all its streams a token at once, then none for a step.
            self.usual_s += (self._widest - self.usual_s) * (_ALPHA if self.usual_s else 1.0)
            self._widest = 0.0
        stood = now - max(self.heard, asked, awake_since)
        if not speaking or self.heard == self._reported or stood <= max(stall_s, factor * self.usual_s):
            return None
        self._reported = self.heard
        return speaking, stood


class Pulses:
    """All engines this gateway has used."""

    def __init__(self, stall_s: float, stall_factor: float) -> None:
        self._stall_s = stall_s
        self._factor = stall_factor
        self._pulses: dict[tuple[str, int], Pulse] = {}
        self._awake_since = 0.0

    @contextmanager
    def felt(self, tether: Tether) -> Generator[None]:
        """Count a stream among those on its engine."""
        key = tether.node.id, tether.node.epoch
        pulse = self._pulses.get(key)
        if pulse is None:
            pulse = self._pulses[key] = Pulse()
        pulse.tethers.add(tether)
        try:
            yield
        finally:
            pulse.tethers.discard(tether)
            pulse.fold(tether)

    def slept(self, now: float) -> None:
        """Count no silence from before now: this gateway was not there to hear anything."""
        self._awake_since = now

    def stalls(self, now: float) -> list[Stall]:
        """Return the engines that have just been silent for too long, each once until it moves again."""
        found = []
        for (node, epoch), pulse in self._pulses.items():
            stood = pulse.look(now, self._awake_since, self._stall_s, self._factor) if pulse.tethers else None
            if stood is not None:
                found.append(Stall(node, epoch, stood[0], stood[1], pulse.usual_s))
        return found

    def ages_ms(self, now: float) -> dict[str, int]:
        """Return ms since the last sign of work for each `node@epoch` that gave one since the last call."""
        ages = {}
        for (node, epoch), pulse in self._pulses.items():
            for tether in pulse.tethers:
                pulse.fold(tether)
            if pulse.fresh():
                ages[f"{node}@{epoch}"] = round((now - pulse.heard) * 1_000)
        return ages

    def keep(self, engines: Collection[tuple[str, int]]) -> None:
        """Forget engines that are neither among these nor in use."""
        self._pulses = {key: pulse for key, pulse in self._pulses.items() if pulse.tethers or key in engines}

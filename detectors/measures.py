"""What a judge measures by: its own time, round trips, an engine's chances to move, and how long a node usually takes.

Pure: times are passed in, in seconds.
"""

from collections import deque
from dataclasses import dataclass

_MAX_STEP = 0.15
"""Seconds one look may advance own time. The shell looks at least every 0.1 s; what is beyond was our own sleep."""
_BASELINE_ALPHA = 0.02
_SAMPLES = 16
"""Samples kept: what is marked lies a few of them back at most."""


class OwnTime:
    """Time that stands still while nobody looked.

    A sentinel that was stopped, starved or blocked has seen nothing, so nothing may be concluded from
    that stretch: it does not count against any deadline.
    """

    def __init__(self, now: float) -> None:
        self.now = 0.0
        self._seen = now

    def look(self, now: float) -> float:
        """Advance to `now`; return the seconds that were slept through."""
        step = max(0.0, now - self._seen)
        self._seen = max(self._seen, now)
        counted = min(step, _MAX_STEP)
        self.now += counted
        return step - counted


class Rtt:
    """Round-trip time of a link: smoothed, its jitter, and the deadline for the next pong (requirements B1, B2)."""

    def __init__(
        self, alpha: float, deadline_s: float, deadline_max_s: float, baseline_us: float | None = None
    ) -> None:
        self._alpha = alpha
        self._floor = deadline_s
        self._ceiling = deadline_max_s
        self.last_us = 0.0
        self.ewma_us = 0.0
        self.jitter_us = 0.0
        self.samples = 0
        self.baseline_us = baseline_us
        """What is usual for this link, learned in good times only; None before any."""

    def add(self, rtt_us: float, *, calm: bool) -> None:
        """Take a sample; `calm` ones also teach the baseline."""
        self.last_us = rtt_us
        if self.samples == 0:
            self.ewma_us, self.jitter_us = rtt_us, rtt_us / 2
        else:
            self.jitter_us += self._alpha * (abs(rtt_us - self.ewma_us) - self.jitter_us)
            self.ewma_us += self._alpha * (rtt_us - self.ewma_us)
        self.samples += 1
        if calm:
            usual = self.ewma_us if self.baseline_us is None else self.baseline_us
            self.baseline_us = usual + _BASELINE_ALPHA * (self.ewma_us - usual)

    @property
    def usual_s(self) -> float:
        """The time within which a pong usually is back: EWMA + 4 × jitter; the upper bound while nothing is known."""
        if self.samples == 0:
            return self._ceiling
        return (self.ewma_us + 4 * self.jitter_us) / 1e6

    @property
    def deadline_s(self) -> float:
        """The usual time within its bounds: past it, a pong is missed."""
        return min(max(self.usual_s, self._floor), self._ceiling)

    @property
    def at_baseline(self) -> bool:
        """Whether the link is as good as before (requirements B6), with room for the noise of tiny figures."""
        if self.baseline_us is None:
            return True
        return self.ewma_us <= max(self.baseline_us * 1.5, self.baseline_us + 5_000.0)


class Usual:
    """How long something usually takes: a smoothed figure, 0 before it is known."""

    def __init__(self, alpha: float = 0.2) -> None:
        self._alpha = alpha
        self.seconds = 0.0
        self.known = False

    def add(self, seconds: float) -> None:
        """Take a sample."""
        self.seconds += (self._alpha if self.known else 1.0) * (seconds - self.seconds)
        self.known = True


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, with what the engine had used and waited for by then."""

    at: float
    cpu_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Chance:
    """How long an engine could have moved since a mark, seconds."""

    standing: float
    """It neither used a CPU (where its model computes on one) nor waited for one."""
    unstarved: float
    """It did not wait for a CPU; it may have used one."""
    passed: float
    """All the time there was."""


class Chances:
    """Tells an engine that stands from one that computes or gets no CPU.

    Judged as of the agent's last sample, never beyond: what came after it is not known yet.
    """

    def __init__(self) -> None:
        self._last = Mark(0.0, 0.0, 0.0)
        self._before: deque[Mark] = deque([self._last], maxlen=_SAMPLES)
        self._on_cpu = False

    def sample(self, at: float, cpu_s: float, wait_s: float, *, on_cpu: bool) -> None:
        """Take the engine's account as of `at`; `on_cpu`: its model computes on the CPU."""
        if at > self._last.at:
            self._last, self._on_cpu = Mark(at, cpu_s, wait_s), on_cpu
            self._before.append(self._last)

    def mark(self, at: float) -> Mark:
        """Mark a moment. What was used since the sample before it counts as used after it: in doubt for the engine."""
        known = self._last
        if known.at > at:
            known = next((sample for sample in reversed(self._before) if sample.at <= at), self._before[0])
        return Mark(max(at, known.at), known.cpu_s, known.wait_s)

    def since(self, mark: Mark) -> Chance:
        """Return how long the engine could have moved between `mark` and the last sample."""
        passed = max(0.0, self._last.at - mark.at)
        # Sums begin anew with an engine process; several processes may wait at once, so waits may exceed the time.
        waited = max(0.0, self._last.wait_s - mark.wait_s)
        used = max(0.0, self._last.cpu_s - mark.cpu_s) if self._on_cpu else 0.0
        return Chance(max(0.0, passed - waited - used), max(0.0, passed - waited), passed)

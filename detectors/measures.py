"""What a judge measures by: its own time, round trips, and how long a node usually takes.

Pure: times are passed in, in seconds.
"""

_MAX_STEP = 0.15
"""Seconds one look may advance own time. The shell looks at least every 0.1 s; what is beyond was our own sleep."""
_BASELINE_ALPHA = 0.02


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

    def __init__(self, alpha: float, deadline_s: float, deadline_max_s: float) -> None:
        self._alpha = alpha
        self._floor = deadline_s
        self._ceiling = deadline_max_s
        self.last_us = 0.0
        self.ewma_us = 0.0
        self.jitter_us = 0.0
        self.samples = 0
        self.baseline_us: float | None = None
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
    def deadline_s(self) -> float:
        """EWMA + 4 × jitter within its bounds; the upper bound while the link is not known yet."""
        if self.samples == 0:
            return self._ceiling
        return min(max((self.ewma_us + 4 * self.jitter_us) / 1e6, self._floor), self._ceiling)

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

    def add(self, seconds: float) -> None:
        """Take a sample."""
        self.seconds += (self._alpha if self.seconds else 1.0) * (seconds - self.seconds)

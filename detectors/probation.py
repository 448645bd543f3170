"""Half-open time after a recovery: proven healthy, trusted with traffic step by step (requirements B6).

Pure: times are passed in, in seconds.
"""

from recovery.config import ProbationSettings


class Probation:
    """One node's way from weight 0 to 1.

    Nothing but success for `hold_s`, with at least one probe passed, then `step` more weight every
    `step_interval_s`. A failure goes back to 0 and holds longer.
    """

    def __init__(self, settings: ProbationSettings, now: float, weight: float = 0.0, hold_s: float = 0.0) -> None:
        """`hold_s`: what earlier failures have made of the hold; 0 for none."""
        self._settings = settings
        self.weight = weight
        self.hold_s = max(settings.hold_s, hold_s)
        self._passes = 0
        self._clean_since = now
        self._stepped_at: float | None = None
        if weight > 0:  # its hold was served under a sentinel that is gone
            self._clean_since -= self.hold_s
            self._stepped_at = now

    @property
    def over(self) -> bool:
        """Whether it has its full weight back."""
        return self.weight >= 1.0

    @property
    def longer_hold_s(self) -> float:
        """The hold after one more failure: longer, up to a limit."""
        return min(self.hold_s * self._settings.hold_factor, max(self._settings.hold_max_s, self.hold_s))

    @property
    def proven(self) -> bool:
        """Whether a probe has passed since the last failure."""
        return self._passes > 0

    def passed(self) -> None:
        """A probe passed."""
        self._passes += 1

    def failed(self, now: float) -> None:
        """A probe was late or broke: from the start, with a longer hold."""
        self.weight = 0.0
        self.hold_s = self.longer_hold_s
        self._passes = 0
        self._clean_since = now
        self._stepped_at = None

    def tick(self, now: float, *, calm: bool) -> bool:
        """Go on if it is time; True when the weight changed.

        `calm`: the round-trip time is back at its baseline and nothing is in doubt. Without it the weight stays.
        """
        if self.over or self._passes == 0 or now - self._clean_since < self.hold_s:
            return False
        if not calm:
            if self._stepped_at is not None:
                self._stepped_at = now
            return False
        interval = self._settings.step_interval_s
        if self._stepped_at is None:
            steps, self._stepped_at = 1, now
        else:
            steps = int((now - self._stepped_at) / interval + 1e-9)
            self._stepped_at += steps * interval
        self.weight = min(1.0, round(self.weight + steps * self._settings.step, 9))
        return steps > 0

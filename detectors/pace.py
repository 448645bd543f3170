"""How much slower than usual nodes are pinged, so that too many of them make a sentinel slow, never wrong.

Pure: times are passed in, in seconds.
"""

_WINDOW_S = 0.5
_STEADY = 2
"""Windows in a row that must lag: a burst, or a moment without a CPU, is none."""
_LAGS_S = 0.03
_EASY_S = 0.01
_SLOWER, _QUICKER = 1.25, 0.95
_LONGEST_S = 1.0


class Pace:
    """Follows how late the sentinel's own timers are, and stretches the pause between pings while they lag."""

    def __init__(self, usual_s: float) -> None:
        self.interval_s = self.usual_s = usual_s
        """Between two pings of a node about which nothing is in doubt."""
        self._longest_s = max(usual_s, _LONGEST_S)
        self._window_ends = 0.0
        self._late_s = 0.0
        self._timers = 0
        self._lagged = 0

    def woke(self, late_s: float, now: float) -> bool:
        """Take in how late a timer was; True when the pause changed."""
        self._late_s += late_s
        self._timers += 1
        if now < self._window_ends:
            return False
        mean_s = self._late_s / self._timers
        self._window_ends, self._late_s, self._timers = now + _WINDOW_S, 0.0, 0
        self._lagged = self._lagged + 1 if mean_s > _LAGS_S else 0
        before = self.interval_s
        if self._lagged >= _STEADY:
            self.interval_s = min(before * _SLOWER, self._longest_s)
        elif mean_s < _EASY_S:
            self.interval_s = max(before * _QUICKER, self.usual_s)
        return self.interval_s != before

"""The case of the link and the lease: silence kills only when a second path is silent too.

Pure: times come from the docket's own time, in seconds.
"""

from detectors.docket import Docket
from detectors.evidence import Confirm, Reconnect

_AGAIN_S = 1.0
"""Pause before asking again what was asked without a result."""
_FORGET_S = 5.0
"""Age at which a missed ping is no longer waited for."""
_STUCK_STREAM = 2
"""Second paths answered, without one pong between them, until the stream counts as stuck."""


class LinkCase:
    """Pings without pongs, a broken stream, an expired lease, and the second path that confirms them."""

    def __init__(self, docket: Docket) -> None:
        self._docket = docket
        self.misses = 0
        """Consecutive pongs that are late."""
        self.broken = ""
        """Why the stream is down; empty while it is up."""
        self._seq = 0
        self._pings: dict[int, tuple[float, bool]] = {}
        """Pings without pong: when sent, and whether counted as missed."""
        self._silent_since = 0.0
        self._confirming = False
        self._confirm_void = False
        self._confirmed_at = -_AGAIN_S
        self._second_path = ""
        """How the second path failed since the last sign of life; empty: it did not."""
        self._answers_without_pong = 0
        self._lease_expired = False
        self._lease_silences = 0

    @property
    def ok(self) -> bool:
        """Whether the stream answers."""
        return not self.broken and self.misses < self._docket.rules.fail_threshold

    def next_deadline_s(self) -> float:
        """Seconds until the first open ping is late (0.1 at most)."""
        sent = [at for at, missed in self._pings.values() if not missed]
        left = min(sent) + self._docket.rtt.deadline_s - self._docket.now if sent else 0.1
        return min(max(left, 0.0), 0.1)

    def ping(self) -> int:
        """Note that a ping is sent now; return its number."""
        self._seq += 1
        self._pings[self._seq] = (self._docket.now, False)
        return self._seq

    def pong(self, seq: int, rtt_us: float, *, calm: bool) -> None:
        """The agent lives: whatever stood against link or lease is settled."""
        docket = self._docket
        sent, missed = self._pings.get(seq, (docket.now, False))
        # The stream keeps order: what was sent before this one has been answered or never will be.
        self._pings = {number: entry for number, entry in self._pings.items() if number > seq}
        # A round trip through which we slept ourselves says nothing about the link.
        if missed or rtt_us / 1e6 <= docket.now - sent + 0.05:
            docket.rtt.add(rtt_us, calm=calm and not missed)
        self.broken = ""
        self.misses = self._lease_silences = self._answers_without_pong = 0
        self._second_path, self._confirm_void = "", self._confirming
        self._settled()

    def stream(self, broken: str) -> None:
        """The stream was opened (empty) or broke (why)."""
        self.broken = broken
        self._pings.clear()
        self.misses = 0
        if broken:
            self._confirm()

    def lease(self, *, expired: bool) -> None:
        """The lease ran out, or is there."""
        self._lease_expired = expired
        if expired:
            self._confirm()
        else:
            self._lease_silences = 0
            self._docket.doubts.pop("lease", None)

    def tick(self) -> None:
        """Count the pongs that have become late, and ask what is to be asked."""
        docket = self._docket
        deadline = docket.rtt.deadline_s
        for seq, (sent, missed) in list(self._pings.items()):
            if missed and docket.now - sent > _FORGET_S:
                del self._pings[seq]
            elif not missed and docket.now - sent > deadline:
                self._pings[seq] = (sent, True)
                self._silent_since = self._silent_since if self.misses else sent
                self.misses += 1
        age = docket.now - self._confirmed_at
        if (self.misses and age >= docket.rules.second_path_s) or (
            (self.broken or self._lease_expired) and age >= _AGAIN_S
        ):
            self._confirm()
        self._judge()

    def second_path_answered(self) -> None:
        """A direct question was answered: slow or stuck, but alive."""
        self._confirming, self._confirmed_at = False, self._docket.now
        self._second_path, self._lease_silences = "", 0
        if self.misses:
            self.misses = 0
            self._answers_without_pong += 1
            if self._answers_without_pong >= _STUCK_STREAM:
                self._answers_without_pong = 0
                self._docket.decide(Reconnect())
        self._settled()

    def second_path_failed(self, detail: str) -> None:
        """A direct question was refused or not answered in time."""
        self._confirming = False
        if self._confirm_void:
            return  # a pong came while it was under way
        self._confirmed_at = self._docket.now
        if self.broken or self.misses:
            self._second_path = detail
            self._judge()
        if self._lease_expired and self._docket.judged and not self._docket.held:
            self._lease_silences += 1
            self._docket.doubts["lease"] = "lease expired"
            if self._lease_silences >= self._docket.rules.confirm_probes:
                silences = self._lease_silences
                self._docket.die("lease", f"lease expired; {silences} status calls silent, the last: {detail}")
            else:
                self._second_path = ""
                self._confirm()

    def restart(self) -> None:
        """Judge from here on only by what comes from here on."""
        self._pings.clear()
        self.misses = self._lease_silences = self._answers_without_pong = 0
        self._second_path, self._confirm_void = "", self._confirming
        self._confirmed_at = self._docket.now

    def _judge(self) -> None:
        """Both paths silent: the link is dead. One path alone proves nothing."""
        docket = self._docket
        if self.ok or not docket.judged:
            return
        silence = self.broken or (
            f"{self.misses} pongs missed in {(docket.now - self._silent_since) * 1e3:.0f} ms "
            f"(deadline {docket.rtt.deadline_s * 1e3:.0f} ms)"
        )
        docket.doubts["link"] = silence
        if self._second_path:
            docket.die("link", f"{silence}; second path: {self._second_path}")

    def _confirm(self) -> None:
        if self._docket.judged and not self._confirming and not self._second_path:
            self._confirming, self._confirm_void = True, False
            self._docket.decide(Confirm(self._docket.rules.second_path_s))

    def _settled(self) -> None:
        if not self.broken:
            self._docket.doubts.pop("link", None)
        self._docket.doubts.pop("lease", None)

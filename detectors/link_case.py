"""The case of the link, the agent and the lease: silence kills only when a second path is silent too.

Pure: times come from the docket's own time, in seconds.
"""

from detectors.docket import Docket
from detectors.evidence import Confirm, Knock, Reconnect

_AGAIN_S = 1.0
"""Pause before asking the agent again what it has just answered, or not."""
_KNOCK_AGAIN_S = 0.25
"""Age at which an answer of the host is too old to speak for it."""
_KNOCKS = 10
"""Tries to connect that must all be in vain."""
_FORGET_S = 2.0
"""Age at which a missed ping is no longer waited for."""
_ROUND_TRIPS = 4
"""What a question on a fresh connection needs of the link, a lost packet included."""
_STUCK_STREAM = 2
"""Second paths answered, without one pong between them, until the stream counts as stuck."""
_RECENT_S = 1.0
"""Tokens that came so shortly before the silence may go on without the agent ..."""
_ORPHAN_S = 0.5
"""... which gateways will have said by then."""


class LinkCase:
    """Pings without pongs, a broken stream, an expired lease, and the second paths that confirm them."""

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
        self._knocking = self._knock_void = False
        self._host_answered_at = -_KNOCK_AGAIN_S
        self._host_silent = ""
        """How the host was silent since the last sign of life; empty: it was not."""
        self._refused = False
        self._confirming = self._confirm_void = False
        self._confirmed_at = -_AGAIN_S
        self._silences = 0
        """Direct questions without an answer since the last sign of life."""
        self._silence = ""
        self._answers_without_pong = 0
        self.lease_expired = False
        self._lease_since = 0.0
        self._heard_at = 0.0
        """When the agent last gave a sign of life."""

    @property
    def ok(self) -> bool:
        """Whether the stream answers."""
        return not self.broken and self.misses < self._docket.rules.fail_threshold

    @property
    def hurried(self) -> bool:
        """Whether a pong is later than usual, so that pings should follow each other faster."""
        return self.misses > 0 or (bool(self._pings) and self._oldest_s() > self._hurry_s())

    def next_look_s(self) -> float:
        """Seconds until an open ping becomes late, or later than usual (0.1 at most)."""
        sent = [at for at, missed in self._pings.values() if not missed] if self._pings else None
        if not sent:
            return 0.1
        age = self._docket.now - min(sent)
        hurry = self._hurry_s()
        left = (hurry if age < hurry else self._docket.rtt.deadline_s) - age
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
        if seq == self._seq:
            self._pings.clear()
        else:
            self._pings = {number: entry for number, entry in self._pings.items() if number > seq}
        # A round trip through which we slept ourselves says nothing about the link.
        if missed or rtt_us / 1e6 <= docket.now - sent + 0.05:
            docket.rtt.add(rtt_us, calm=calm and not missed)
        self.broken = ""
        self._answers_without_pong = 0
        self._alive()

    def stream(self, broken: str) -> None:
        """The stream was opened (empty) or broke (why)."""
        if broken and not self.broken and not self.misses:
            self._silent_since = self._docket.now
        self.broken = broken
        self._pings.clear()
        self.misses = 0
        if broken:
            self._knock()

    def lease(self, *, expired: bool) -> None:
        """The lease ran out, or is there."""
        if expired and not self.lease_expired:
            self._lease_since = self._docket.now
        self.lease_expired = expired
        if expired:
            self._confirm()
        else:
            self._docket.doubts.pop("lease", None)

    def tick(self) -> None:
        """Count the pongs that have become late, and ask what is to be asked."""
        if not (self._pings or self.misses or self.broken or self.lease_expired):
            return  # what most looks at most nodes find
        docket = self._docket
        deadline = docket.rtt.deadline_s
        for seq, (sent, missed) in list(self._pings.items()):
            if missed and docket.now - sent > _FORGET_S:
                del self._pings[seq]
            elif not missed and docket.now - sent > deadline:
                self._pings[seq] = (sent, True)
                self._silent_since = self._silent_since if self.misses else sent
                self.misses += 1
        if self.hurried or self.broken:
            self._knock()
        if (not self.ok and not self._host_silent) or self.lease_expired:
            self._confirm()
        self._judge()

    def host_answered(self) -> None:
        """The host took a connection: the link is good, whatever the agent does."""
        self._knocking = False
        self._host_answered_at = self._docket.now
        self._host_silent, self._refused = "", False
        self._judge()

    def host_silent(self, detail: str, *, refused: bool) -> None:
        """No connection was taken in time, or one was refused."""
        self._knocking = False
        if not self._knock_void:  # a pong came while it was under way
            self._host_silent, self._refused = detail, refused
            self._judge()

    def second_path_answered(self) -> None:
        """A direct question was answered: slow or stuck, but alive."""
        self._confirming, self._confirmed_at = False, self._docket.now
        stood = self.misses > 0
        self._alive()
        if stood:
            self._answers_without_pong += 1
            if self._answers_without_pong >= _STUCK_STREAM:
                self._answers_without_pong = 0
                self._docket.decide(Reconnect())

    def second_path_failed(self, detail: str) -> None:
        """A direct question was refused or not answered in time."""
        self._confirming = False
        if self._confirm_void:
            return  # a pong came while it was under way
        self._confirmed_at = self._docket.now
        if not self.ok or self.lease_expired:
            self._silences += 1
            self._silence = detail
        if self.lease_expired:
            self._docket.doubts["lease"] = "lease expired"
            self._confirmed_at -= _AGAIN_S  # the next one at once
        self._judge()

    def restart(self) -> None:
        """Judge from here on only by what comes from here on."""
        self._pings.clear()
        self.misses = self._answers_without_pong = 0
        self._heard_at = self._silent_since = self._docket.now
        self._forget_silence()
        self._confirmed_at = self._docket.now

    # ---- inside -----------------------------------------------------------------------------------------------

    def _oldest_s(self) -> float:
        sent = [at for at, _ in self._pings.values()]
        return self._docket.now - min(sent) if sent else 0.0

    def _hurry_s(self) -> float:
        """A pong that takes longer than usual is not missed yet, but it is time to look closer."""
        rtt = self._docket.rtt
        return min(rtt.usual_s + self._docket.rules.confirm_interval_s, rtt.deadline_s)

    def _patience_s(self) -> float:
        """How long a silent agent is waited for: time for the direct questions that must remain unanswered."""
        rules = self._docket.rules
        return rules.agent_patience_s + rules.confirm_probes * _ROUND_TRIPS * self._docket.rtt.usual_s

    def _alive(self) -> None:
        self.misses = 0
        self._heard_at = self._silent_since = self._docket.now
        self._forget_silence()
        if not self.broken:
            self._docket.doubts.pop("link", None)
        self._docket.doubts.pop("lease", None)

    def _forget_silence(self) -> None:
        self._silences, self._silence = 0, ""
        self._host_silent, self._refused = "", False
        self._knock_void, self._confirm_void = self._knocking, self._confirming

    def _knock(self) -> None:
        """Ask the host beside the stream, so that its answer is there by the last miss."""
        docket, rules = self._docket, self._docket.rules
        fresh = docket.now - self._host_answered_at < _KNOCK_AGAIN_S
        if self._knocking or self._host_silent or fresh or not docket.judged:
            return
        deadline = max(rules.fail_threshold - 2, 0) * rules.confirm_interval_s + docket.rtt.deadline_s
        self._knocking, self._knock_void = True, False
        docket.decide(Knock(deadline, deadline / _KNOCKS))

    def _confirm(self) -> None:
        if self._docket.judged and not self._confirming and self._docket.now - self._confirmed_at >= _AGAIN_S:
            self._confirming, self._confirm_void = True, False
            rules, usual_s = self._docket.rules, self._docket.rtt.usual_s
            self._docket.decide(Confirm(rules.status_deadline_s + _ROUND_TRIPS * usual_s))

    def _judge(self) -> None:
        """Stream and host silent: the link is dead. Stream and agent silent for long: the agent is."""
        docket, rules = self._docket, self._docket.rules
        if not docket.judged or docket.held:
            return
        unheard = docket.now - self._heard_at >= self._patience_s()
        if self.lease_expired and unheard and self._silences >= rules.confirm_probes:
            evidence = f"lease expired; {self._silences} status calls silent, the last: {self._silence}"
            docket.die("lease", evidence, took_s=docket.now - self._lease_since)
            return
        if self.ok:
            return
        silent_s = docket.now - self._silent_since
        silence = self.broken or (
            f"{self.misses} pongs missed in {silent_s * 1e3:.0f} ms (deadline {docket.rtt.deadline_s * 1e3:.0f} ms)"
        )
        docket.doubts["link"] = silence
        if self._tokens_flow(silent_s):
            return
        if self._host_silent:
            docket.die("link", f"{silence}; second path: {self._host_silent}", took_s=silent_s)
        elif self._silences >= rules.confirm_probes and silent_s >= self._patience_s():
            evidence = f"{silence}; its host answers, {self._silences} status calls do not: {self._silence}"
            docket.die("agent", evidence, took_s=silent_s)

    def _tokens_flow(self, silent_s: float) -> bool:
        """Whether gateways get tokens from a node silent to us: then the way from here is at fault, or the agent."""
        since_silence = self._docket.tokens_at - self._silent_since
        if since_silence > self._docket.rtt.deadline_s:
            return self._docket.now - self._docket.tokens_at <= _RECENT_S  # else they have stopped as well
        # Its host refuses us, so it is up: its engine may well go on.
        return self._refused and since_silence > -_RECENT_S and silent_s < _ORPHAN_S

"""The case of the engine: busy or stuck, told apart by its own counters and by tokens made for our probes.

Pure: times come from the docket's own time, in seconds (requirements B3, E4).
"""

from detectors.docket import Docket
from detectors.evidence import Probe, Report
from detectors.measures import Usual

_FRESH_S = 1.0
"""Age up to which a report still says whether work is pending."""
_LONGEST_S = 5.0
"""Deadline no load lifts a probe's above, unless the setting itself is longer."""
_PAUSE_S = 0.25
"""Pause between probes that are asked for by others or by a stall."""


class EngineCase:
    """The progress counter, and the one micro-inference that may be under way."""

    def __init__(self, docket: Docket, slots: int, *, reached: bool) -> None:
        self._docket = docket
        self._slots = max(1, slots)
        self.report: Report | None = None
        self.reached = reached
        """Whether a probe ever got through to this engine; before, a refused one may be our own fault."""
        self._reported_at = 0.0
        self._moved_at = -1.0
        self._still_since = 0.0
        self._usual_gap = Usual()
        self._usual_probe = Usual()
        self._probing = False
        self._probe_void = False
        self._probe_from = 0.0
        self._probe_deadline = docket.rules.probe_deadline_s
        self._probed_at = -1.0
        self._strikes = 0

    def read(self, report: Report) -> None:
        """Follow the counter in a report of our epoch."""
        before, self.report, now = self.report, report, self._docket.now
        self._reported_at = now
        if not report.serving:
            self._still_since = now
        elif before is None or report.progress != before.progress:
            if before is not None and before.pending and report.pending:
                # What polling alone can make of a gap is not the engine's.
                self._usual_gap.add(max(0.0, now - self._still_since - self._docket.rules.resolution_s))
            self.moved()
        elif not report.pending:
            self._still_since = now

    def moved(self) -> None:
        """The engine works: its counter moved, or a token of its own was seen."""
        self._moved_at = self._still_since = self._docket.now
        self._strikes = 0
        self._docket.doubts.pop("stall", None)
        self._docket.doubts.pop("probe", None)

    def tick(self) -> None:
        """Notice a counter that stands still while work is pending."""
        report, now, rules = self.report, self._docket.now, self._docket.rules
        if report is None or not report.serving or not report.pending or now - self._reported_at > _FRESH_S:
            return
        limit = max(rules.stall_s, rules.stall_factor * self._usual_gap.seconds)
        if now - self._still_since > limit:
            self._docket.doubts["stall"] = (
                f"counter still at {report.progress} for {(now - self._still_since) * 1e3:.0f} ms "
                f"with {report.running} running, {report.waiting} waiting (limit {limit * 1e3:.0f} ms)"
            )
            self.probe_soon()

    def probe_soon(self, pause_s: float = _PAUSE_S) -> None:
        """Probe, unless one has just ended."""
        if self._docket.now - self._probed_at >= pause_s:
            self.probe()

    def probe(self, delay_s: float = 0.0) -> None:
        """Ask for a micro-inference, if the engine is in the phase for it and none is under way."""
        report, docket = self.report, self._docket
        if self._probing or not docket.judged or report is None or not report.serving:
            return
        load = (report.running + report.waiting) / self._slots
        base = docket.rules.probe_deadline_s * (1 + load)
        # A node that usually is slow gets more time, but not without end; nor does a long queue excuse a
        # standing engine: behind one that works the counter moves, and then a late probe proves nothing.
        longest = max(docket.rules.probe_deadline_s, _LONGEST_S)
        self._probe_deadline = min(max(base, 2 * self._usual_probe.seconds), 3 * base, longest)
        self._probing, self._probe_void, self._probe_from = True, False, docket.now + delay_s
        docket.decide(Probe(self._probe_deadline, delay_s))

    def probe_over(self) -> None:
        """The probe under way ended, whatever it says."""
        self._probing, self._probed_at = False, self._docket.now

    def probe_passed(self, took_s: float) -> None:
        """Our own token came in time."""
        self.probe_over()
        self.reached = True
        self._usual_probe.add(took_s)
        self.moved()

    def probe_bad(self, detail: str, *, late: bool) -> bool:
        """No token of our own came: stuck, unless the engine was seen to work meanwhile.

        Returns whether it counts against the node. A second one in a row kills; after a stall the first does.
        """
        docket, waited = self._docket, self._docket.now - self._probe_from
        self.probe_over()
        if self._probe_void or not docket.judged or self.report is None or not self.report.serving:
            return False
        if self._moved_at > self._probe_from:
            return False  # busy
        if late and waited < 0.8 * self._probe_deadline:
            self.probe()  # the wait was our own sleep
            return False
        if not late and not self.reached:
            return False  # nobody ever got through from here: the way may be wrong, not the engine
        self._strikes += 1
        stall = docket.doubts.get("stall", "")
        docket.doubts["probe"] = f"probe: {detail} ({waited:.2f} s)"
        if (late and stall) or self._strikes >= 2:
            against = f"{stall}; " if stall else ""
            docket.die("hang" if late else "unreachable", f"{against}{docket.doubts['probe']}")
        else:
            self.probe(0.0 if late else docket.rules.probe_deadline_s / 4)
        return True

    def restart(self) -> None:
        """Judge from here on only by what comes from here on."""
        self._strikes = 0
        self._still_since = self._docket.now
        self._probe_void = self._probing

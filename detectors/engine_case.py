"""The case of the engine: busy or stuck, told apart by its own counters and by tokens made for our probes.

Pure. Reports may be delayed, each by a time of its own, so engines are judged by their agents' clock, in seconds
(requirements B3, E4).
"""

from collections.abc import Callable
from dataclasses import dataclass

from detectors.docket import Docket
from detectors.evidence import Probe, Report
from detectors.measures import Chance, Chances, Mark, Usual

_BACK_S = 5.0
"""A report older than the last one by more than this is of another clock: the machine was started anew."""
_ANSWERING_S = 0.3
"""Age up to which the counter counts as just read: then it has the word, not what gateways still receive."""
_PREFILL_STEP_S = 3.0
"""Least time for one step of a prompt beside a GPU, on an engine that has shown such steps before."""
_DOUBTFUL = 0.26
"""The agent reads the counter every 100 ms, a quarter of the least limit: an engine that moves stays below."""
_PROBED = 0.3
"""Share of its limit after which a standing engine is probed, so that the probe is late when the limit is reached."""
_LATE = 0.25
"""Share of the stall time that a probe beside a stall is given at least."""
_MOST = 0.75
_STARVED = 4.0
"""How much longer than one that spins an engine without a CPU, or stuck in its driver, may go without moving."""
_LONGEST_S = 5.0
"""Deadline no load lifts a probe's above, unless the setting itself is longer."""
_PAUSE_S = 0.25
"""Pause between probes that are asked for by others ..."""
_STALLED_S = 0.1
"""... by an engine that stands ..."""
_UNKNOWN_S = 1.0
"""... and until the first one has shown how long they take here."""


class EngineCase:
    """The progress counter, and the one micro-inference that may be under way."""

    def __init__(self, docket: Docket, slots: int, *, reached: bool) -> None:
        self._docket = docket
        self._slots = max(1, slots)
        self.report: Report | None = None
        self.reached = reached
        """Whether a probe ever got through to this engine; before, a refused one may be our own fault."""
        self._at = 0.0
        """When the last report was written."""
        self._ahead = 0.0
        """The agent's clock less the docket's, as of the last report."""
        self._chances = Chances()
        self._moved_at = -1.0
        self._still = self._chances.mark(0.0)
        """Since when the counter has stood although it ought to move."""
        self._counted = self._still
        """When the counter last moved."""
        self._usual_gap = Usual()
        self._usual_step = Usual()
        self._shows_prefill = False
        """Its counter was seen to move while a prompt was computed."""
        self._usual_probe = Usual()
        self._probing = False
        self._probe_void = False
        self._probe_asked = 0.0
        self._probe_from = self._still
        self._probe_seen: Mark | None = None
        """Since when the agent's reports have shown a probe in the engine."""
        self._probe_deadline = docket.rules.probe_deadline_s
        self._probed_at = -1.0
        self._strikes = 0
        self.doubtful = False
        """Whether it stands for unusually long, so that reports should follow each other faster."""
        self._excused_since: float | None = None
        """Since when late probes have been excused by an engine that had no chance."""

    # ---- what is seen -----------------------------------------------------------------------------------------

    def read(self, report: Report) -> None:
        """Follow the counter in a report of our epoch, and notice an engine that stands although it ought to move."""
        at = report.at_s or self._docket.now
        if self._at - _BACK_S < at < self._at:
            return  # overtaken by a later one
        if self.report is None or at < self._at:
            self._begin(at)
        before, self.report = self.report, report
        self._at, self._ahead = at, at - self._docket.now
        self._chances.sample(at - report.sample_age_s, report.cpu_s, report.wait_s, on_cpu=report.computes_on_cpu)
        answered_at = at - report.age_s
        if not report.serving:
            self._still = self._chances.mark(at)
        elif before is None or report.progress != before.progress:
            if before is not None and before.pending and report.pending:
                self._learn(prefill=before.prefilling > 0 and report.prefilling > 0)
            self._moved(answered_at)
            self._counted = self._chances.mark(answered_at)
        elif not report.pending and answered_at > self._still.at:
            self._still = self._chances.mark(answered_at)  # it has nothing to do, and answers
        if not report.pending:
            self._counted = self._chances.mark(at)
        if not report.probe_s:
            self._probe_seen = None
        elif self._probe_seen is None:
            self._probe_seen = self._chances.mark(at - report.probe_s)
        if report.serving and not self._usual_probe.known:
            self.probe_soon(_UNKNOWN_S)
        self._watch(report)

    def tokens(self, at: float) -> None:
        """A gateway received a token at the docket's time `at`."""
        self._docket.tokens_at = max(self._docket.tokens_at, at)

    def _watch(self, report: Report) -> None:
        docket = self._docket
        self.doubtful = False
        if not report.serving or not docket.judged:
            return
        if not report.pending and report.age_s <= docket.rules.stall_s:
            return
        if self._unread() and self._tokens_at > self._still.at:
            self._moved(self._tokens_at)
        stall = self._stall(report)
        self.doubtful = stall.share >= _DOUBTFUL
        if stall.share >= _PROBED:
            self.probe_soon(_STALLED_S)
        if stall.share < 1.0:
            return
        docket.doubts["stall"] = stall.text
        waited = stall.clock(self._chances.since(self._probe_seen)) if self._probe_seen else 0.0
        if self._probe_seen and not self._probe_void and waited >= self._late_s():
            evidence = f"{stall.text}; no own token in {waited * 1e3:.0f} ms of it"
            docket.die("hang", evidence, took_s=self._at - self._still.at)

    # ---- the micro-inference ----------------------------------------------------------------------------------

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
        self._probing, self._probe_void = True, False
        self._probe_asked = docket.now + delay_s
        self._probe_from = self._chances.mark(docket.now + delay_s + self._ahead)
        docket.decide(Probe(self._probe_deadline, delay_s))

    def probe_over(self) -> None:
        """The probe under way ended, whatever it says."""
        self._probing, self._probed_at = False, self._docket.now

    def probe_passed(self, took_s: float) -> None:
        """Our own token came in time."""
        self.probe_over()
        self.reached = True
        # Of a model on the CPU, only the time in which it did not compute is unusual when it grows.
        self._usual_probe.add(min(took_s, self._chances.since(self._probe_from).standing))
        self._moved(self._at)

    def probe_bad(self, detail: str, *, late: bool) -> bool:
        """No token of our own came: stuck, unless the engine was seen to work meanwhile, or had no chance to.

        Returns whether it counts against the node. A second one in a row kills; after a stall the first does.
        """
        docket, waited = self._docket, self._docket.now - self._probe_asked
        chance = self._chances.since(self._probe_from)
        self.probe_over()
        if self._probe_void or not docket.judged or self.report is None or not self.report.serving:
            return False
        if max(self._moved_at, self._tokens_at if self._unread() else 0.0) > self._probe_from.at:
            return False  # busy
        if late and waited < 0.8 * self._probe_deadline:
            self.probe()  # the wait was our own sleep
            return False
        if late and self.report.pending and self._stall(self.report).share < 1.0:
            return False  # busy in a way that has a deadline of its own
        if late and chance.standing <= 0.5 * chance.passed and self._excused():
            return False  # it computed, or got no CPU: busy
        if not late and not self.reached:
            return False  # nobody ever got through from here: the way may be wrong, not the engine
        self._strikes += 1
        stall = docket.doubts.get("stall", "")
        docket.doubts["probe"] = f"probe: {detail} ({waited:.2f} s)"
        if (late and stall) or self._strikes >= 2:
            against = f"{stall}; " if stall else ""
            docket.die("hang" if late else "unreachable", f"{against}{docket.doubts['probe']}", took_s=waited)
        else:
            self.probe(0.0 if late else docket.rules.probe_deadline_s / 4)
        return True

    def restart(self) -> None:
        """Judge from here on only by what comes from here on."""
        self._strikes = 0
        self._excused_since = None
        self._still = self._chances.mark(self._at)
        self._probe_void = self._probing

    # ---- inside -----------------------------------------------------------------------------------------------

    @property
    def _tokens_at(self) -> float:
        return self._docket.tokens_at + self._ahead

    def _begin(self, at: float) -> None:
        """Take up an agent's clock."""
        self._chances = Chances()
        self._still = self._counted = self._probe_from = self._chances.mark(at)
        self._probe_seen = None
        self._moved_at = at

    def _moved(self, at: float) -> None:
        """The engine worked at own time `at`."""
        if at < self._moved_at:
            return
        self._moved_at = at
        self._still = self._chances.mark(at)
        self._strikes = 0
        self._excused_since = None
        self._docket.doubts.pop("stall", None)
        self._docket.doubts.pop("probe", None)

    def _unread(self) -> bool:
        """Whether the engine's own counter is not to be had: an old buffer may still trickle when an engine is gone."""
        return self.report is None or self.report.age_s > _ANSWERING_S

    def _excused(self) -> bool:
        now = self._docket.now
        since = self._excused_since = now if self._excused_since is None else self._excused_since
        return now - since < _STARVED * self._docket.rules.spin_s

    def _learn(self, *, prefill: bool) -> None:
        """Take the gap that has just ended, less what polling alone can make of one."""
        gap = self._chances.since(self._counted)
        resolution = self._docket.rules.resolution_s
        self._usual_gap.add(max(0.0, gap.standing - resolution))
        self._usual_step.add(max(0.0, gap.unstarved - resolution))
        self._shows_prefill = self._shows_prefill or prefill

    def _stall(self, report: Report) -> "_Stall":
        """Return the clock by which the engine has used up most of its time."""
        rules, chance = self._docket.rules, self._chances.since(self._still)
        quick = max(rules.stall_s, rules.stall_factor * self._usual_gap.seconds)
        slow = max(rules.spin_s, rules.stall_factor * self._usual_step.seconds)
        if report.prefilling and not report.halted:
            step = max(_PREFILL_STEP_S, quick) if self._shows_prefill else rules.prefill_deadline_s
            slow = max(slow, step)
            quick = quick if report.computes_on_cpu else step
        limits = ((_standing, quick, "stands"), (_unstarved, slow, "spins"), (_passed, _STARVED * slow, "starves"))
        share, clock, limit, verb = max(
            ((clock(chance) / limit, clock, limit, verb) for clock, limit, verb in limits), key=lambda entry: entry[0]
        )
        doing = f"{report.running} running, {report.waiting} waiting" if report.pending else "idle and mute"
        halted = ", stopped by a signal" if report.halted else ""
        text = (
            f"engine {verb} for {clock(chance) * 1e3:.0f} ms (limit {limit * 1e3:.0f} ms) "
            f"at counter {report.progress}, {doing}{halted}"
        )
        return _Stall(share, clock, text)

    def _late_s(self) -> float:
        """From when on a probe beside a stall is late: far beyond what is usual here."""
        if not self._usual_probe.known:
            return self._probe_deadline
        return min(max(_LATE * self._docket.rules.stall_s, 4 * self._usual_probe.seconds), self._probe_deadline)


@dataclass(frozen=True, slots=True)
class _Stall:
    share: float
    """Of its limit; from 1 on the engine is stalled."""
    clock: Callable[[Chance], float]
    text: str


def _standing(chance: Chance) -> float:
    # Its last step took some of the time since the counter was read: most of it must be standing, not all.
    return min(chance.standing / _MOST, chance.passed) if chance.standing >= chance.passed / 2 else 0.0


def _unstarved(chance: Chance) -> float:
    return chance.unstarved


def _passed(chance: Chance) -> float:
    return chance.passed

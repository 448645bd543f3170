"""Where a death is decided: evidence about one (node, epoch) goes in, decisions come out.

Pure: time is passed in (seconds of any steady clock); no clock, socket, Redis or log (design, section 5).
"""

from detectors import evidence as ev
from detectors.docket import JUDGED, Docket
from detectors.engine_case import EngineCase
from detectors.evidence import Decision, Evidence, Gpu, Phase, Report
from detectors.link_case import LinkCase
from detectors.measures import Rtt
from detectors.probation import Probation
from detectors.rules import Rules
from recovery.registry import NodeState

__all__ = ["JUDGED", "Judge"]

_SLEPT_S = 1.0
"""Own sleep from which all windows start anew."""
_UNPROVEN_PAUSE_S = 1.0
"""Pause between probes of a node on probation until the first one passes."""


class Judge:
    """Judges one node under one epoch. What kills, and where the rule stands:

    ============== ====================================================================== =====================
    cause          evidence                                                               rule
    ============== ====================================================================== =====================
    process_exit,  the agent says its engine is gone (notice or report): proof, at once   `_engine_down`, `_read`
    start_failed   ... never came up, or does not serve by the start deadline             and `_watch_phase`
    gpu_lost       the agent's GPU fell off the bus or reported a fatal Xid: proof        `_read`
    link           stream broken or `fail_threshold` pongs missed, and its host takes no  `link_case`
                   fresh connection
    agent          the same, its host does, but the agent says nothing for 2 s            `link_case`
    lease          lease expired, `confirm_probes` direct questions silent                `link_case`
    hang           counter still for longer than it may, and own token late; or two own   `engine_case`
                   tokens late in a row without movement; or compiling beyond its deadline
    unreachable    engine refuses or breaks two probes in a row without movement          `engine_case`
    ============== ====================================================================== =====================

    What never kills: a 4xx, a refused token, our own sleep, one silent path beside a good one, a counter that
    moves, an engine that computes or gets no CPU, an agent that says it stops. While `blind` (set from outside)
    nothing unproven does; while `majority_needed` (the same) it takes the votes of others: `Elected`.

    The shell calls `tick` at least every 0.1 s, `ping` for each ping sent (every `ping_interval_s`), `take` for
    each evidence, and carries out what they return. It answers each Knock, Confirm and Probe with one evidence.
    """

    def __init__(
        self,
        rules: Rules,
        epoch: int,
        state: NodeState,
        now: float,
        *,
        weight: float = 0.0,
        slots: int = 1,
        baseline_us: float = 0.0,
        hold_s: float = 0.0,
        before: "Judge | None" = None,
    ) -> None:
        """`before`: the judge of an earlier epoch; the link's figures and its baseline outlive an engine.

        `baseline_us` and `hold_s` are what another sentinel has learned of this node, 0 for nothing.
        """
        self.rules = rules
        self.sleeps = 0
        """How often the sentinel itself slept and all windows started anew."""
        self.probation: Probation | None = None
        rtt = before.rtt if before else Rtt(
            rules.ewma_alpha, rules.pong_deadline_s, rules.pong_deadline_max_s, baseline_us or None
        )  # fmt: skip
        self._docket = Docket(rules, epoch, now, rtt)
        self._link = LinkCase(self._docket)
        self._engine = EngineCase(self._docket, slots, reached=before.reached if before else False)
        self._phase = Phase.UNSPECIFIED
        self._phase_since = 0.0
        self._hold_s = before.hold_s if before else hold_s
        self._rejected = False
        if before:
            self._link.broken, self._rejected = before._link.broken, before._rejected  # noqa: SLF001 - same class
        self.adopt(state, weight)

    # ---- feeding ----------------------------------------------------------------------------------------------

    def take(self, evidence: Evidence, now: float) -> list[Decision]:
        """Weigh a piece of evidence."""
        self._look(now)
        if type(evidence) is ev.Pong:  # nearly all there is
            self._pong(evidence)
        else:
            self._weigh(evidence)
        return self._settle()

    def tick(self, now: float) -> list[Decision]:
        """Look what has become due."""
        self._look(now)
        self._link.tick()
        if self._docket.judged:
            self._watch_phase()
            self._watch_work()
            self._watch_probation()
        return self._settle()

    def ping(self, now: float) -> int:
        """Note that a ping is sent now; return its number."""
        self._look(now)
        return self._link.ping()

    def adopt(self, state: NodeState, weight: float, hold_s: float = 0.0) -> None:
        """Take over a state that a job, an operator or another sentinel has set, with the hold it has come to."""
        self._hold_s = max(self.hold_s, hold_s) if state is not NodeState.ALIVE else 0.0
        self._docket.state, self._docket.weight = state, weight
        self._restart()
        self._phase_since = self._docket.now
        self.probation = None
        if state is NodeState.PROBATION:
            self.probation = Probation(self.rules.probation, self._docket.now, weight, self._hold_s)

    def withdraw(self) -> None:
        """Take back an unproven verdict that could not be published: the node is judged anew."""
        if self.state is NodeState.DEAD:
            self.adopt(*self._docket.before_death)

    # ---- figures ----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch judged."""
        return self._docket.epoch

    @property
    def state(self) -> NodeState:
        """Where the node stands."""
        return self._docket.state

    @property
    def weight(self) -> float:
        """Share of normal traffic it may take, 0..1."""
        return self._docket.weight

    @property
    def judged(self) -> bool:
        """Whether the node may be declared dead now."""
        return self._docket.judged

    @property
    def blind(self) -> bool:
        """Whether the sentinel may not see: nothing unproven is concluded."""
        return self._docket.blind

    @blind.setter
    def blind(self, value: bool) -> None:
        self._docket.blind = value

    @property
    def starved(self) -> bool:
        """Whether the sentinel does not get to run: no suspicion begins or ends by itself."""
        return self._docket.starved

    @starved.setter
    def starved(self, value: bool) -> None:
        self._docket.starved = value

    @property
    def majority_needed(self) -> bool:
        """Whether other sentinels must agree before an unproven death."""
        return self._docket.majority_needed

    @majority_needed.setter
    def majority_needed(self, value: bool) -> None:
        self._docket.majority_needed = value

    @property
    def hold_s(self) -> float:
        """How long the present probation holds, or the next one would; 0: as the settings say."""
        if self.probation is None:
            return self._hold_s
        return self.probation.longer_hold_s if self.state is NodeState.DEAD else self.probation.hold_s

    @property
    def link_ok(self) -> bool:
        """Whether the stream answers."""
        return self._link.ok

    @property
    def misses(self) -> int:
        """Consecutive pongs missed."""
        return self._link.misses

    @property
    def ping_interval_s(self) -> float:
        """Seconds until the next ping: shorter while a late pong, or an engine that stands, is to be confirmed."""
        return (
            self.rules.confirm_interval_s if self._link.hurried or self._engine.doubtful else self.rules.ping_interval_s
        )

    @property
    def rtt(self) -> Rtt:
        """The link's figures."""
        return self._docket.rtt

    @property
    def report(self) -> Report | None:
        """The agent's last report of this epoch."""
        return self._engine.report

    @property
    def reached(self) -> bool:
        """Whether a probe ever got through to this node's engine."""
        return self._engine.reached

    def next_look_s(self) -> float:
        """Seconds after which `tick` should be called (0.1 at most)."""
        return self._link.next_look_s()

    # ---- rules ------------------------------------------------------------------------------------------------

    def _pong(self, pong: ev.Pong) -> None:
        self._rejected = False
        docket = self._docket
        self._link.pong(pong.seq, pong.rtt_us, calm=docket.state is NodeState.ALIVE and not docket.doubts)
        if pong.report is not None:
            self._read(pong.report)

    def _weigh(self, evidence: Evidence) -> None:
        match evidence:
            case ev.Rested(report):
                self._read(report)
            case ev.EngineDown(epoch, cause, detail, age_s):
                self._engine_down(epoch, cause, detail, age_s)
            case ev.LinkUp():
                self._link.stream("")
            case ev.LinkBroken(detail):
                self._rejected = False
                self._link.stream(detail or "stream broken")
            case ev.LinkRejected():
                self._rejected = True
                self._link.stream("")
                self._docket.doubts.pop("link", None)
            case ev.SecondPathAnswered(report_or_none):
                self._link.second_path_answered()
                if report_or_none is not None:
                    self._read(report_or_none)
            case ev.SecondPathFailed(detail):
                self._link.second_path_failed(detail)
            case ev.HostAnswered():
                self._link.host_answered()
            case ev.HostSilent(detail, refused):
                self._link.host_silent(detail, refused=refused)
            case ev.LeaseExpired():
                self._link.lease(expired=True)
            case ev.LeaseHeld():
                self._link.lease(expired=False)
            case ev.ProbeDue():
                self._engine.probe()
            case ev.UpstreamBroken():
                self._engine.probe_soon()
            case ev.ProbePassed(took_s):
                self._engine.probe_passed(took_s)
                if self.probation:
                    self.probation.passed()
            case ev.ProbeNeutral():
                self._engine.probe_over()
            case ev.ProbeLate(detail):
                self._probe_bad(detail, late=True)
            case ev.ProbeFailed(detail, answered):
                self._engine.reached = self._engine.reached or answered
                self._probe_bad(detail, late=False)
            case ev.TokensSeen(age_s):
                self._engine.tokens(self._docket.now - age_s)
            case ev.Elected(cause, detail, took_s):
                self._docket.elected(cause, detail, took_s)
            case ev.AgentStopping():
                if self.judged or self.state is NodeState.DRAINING:
                    self._docket.change(NodeState.STOPPED, 0.0, "the agent stops in good order")

    def _engine_down(self, epoch: int, cause: str, detail: str, age_s: float = 0.0) -> None:
        """Proof: no confirmation, no blindness delays it."""
        if epoch > self.epoch:
            self._docket.decide(ev.MovedOn(epoch))
        elif epoch == self.epoch:
            self._docket.die(cause or "process_exit", detail or "the agent says so", proof=True, took_s=age_s)

    def _read(self, report: Report) -> None:
        if report.epoch > self.epoch:
            self._docket.decide(ev.MovedOn(report.epoch))
        if report.epoch != self.epoch:
            return
        if report.gpu is Gpu.LOST:
            self._engine_down(report.epoch, "gpu_lost", report.gpu_detail)
        elif report.phase is Phase.DOWN:
            self._engine_down(report.epoch, "process_exit", report.detail or "the agent reports the engine down")
        elif report.phase is Phase.FAILED:
            self._engine_down(report.epoch, "start_failed", report.detail or "the agent reports a failed start")
        elif report.serving and self.state is NodeState.STARTING:
            self._docket.change(NodeState.ALIVE, 1.0, "serves")
        self._engine.read(report)

    def _watch_phase(self) -> None:
        """Loading and compiling have deadlines of their own."""
        now, report = self._docket.now, self._engine.report
        loading = self.state is NodeState.STARTING or (report is not None and report.phase is Phase.STARTING)
        phase = Phase.STARTING if loading else report.phase if report else Phase.UNSPECIFIED
        if phase is not self._phase or self._rejected:
            self._phase, self._phase_since = phase, now
        elif phase is Phase.STARTING and now - self._phase_since > self.rules.start_deadline_s:
            self._docket.die("start_failed", f"not serving after {self.rules.start_deadline_s:g} s")
        elif phase is Phase.COMPILING and now - self._phase_since > self.rules.compile_deadline_s:
            self._docket.die("hang", f"still compiling after {self.rules.compile_deadline_s:g} s")

    def _watch_work(self) -> None:
        """A node that lives may still have to be spared new work."""
        report, withheld = self._engine.report, self._docket.withheld
        if self.blind or report is None:
            return  # keep what was known
        if self._link.lease_expired and not report.lease_held:
            withheld["lease"] = "its agent cannot renew its lease"
        elif report.lease_held:
            withheld.pop("lease", None)
        if report.gpu is Gpu.DRIVER_UNRESPONSIVE:
            withheld["gpu"] = f"its GPU's driver does not answer: {report.gpu_detail}"
        else:
            withheld.pop("gpu", None)

    def _probe_bad(self, detail: str, *, late: bool) -> None:
        counts = self._engine.probe_bad(detail, late=late)
        if counts and self.probation and self.judged:
            self.probation.failed(self._docket.now)
            self._docket.change(NodeState.PROBATION, 0.0, detail)

    def _watch_probation(self) -> None:
        if self.probation is None or self.state is not NodeState.PROBATION:
            return
        if not self.probation.proven:
            self._engine.probe_soon(_UNPROVEN_PAUSE_S)
        if self._docket.withheld:
            if self.probation.weight:
                self.probation.failed(self._docket.now)
                self._docket.change(NodeState.PROBATION, 0.0, "; ".join(self._docket.withheld.values()))
            return
        calm = not self._docket.doubts and self.misses == 0 and self.rtt.at_baseline
        if self.probation.tick(self._docket.now, calm=calm):
            weight, text = self.probation.weight, self._probation_text()
            if self.probation.over:
                self.probation, self._hold_s = None, 0.0  # full weight forgives
            self._docket.change(NodeState.PROBATION if self.probation else NodeState.ALIVE, weight, text)

    def _probation_text(self) -> str:
        rtt = self.rtt
        usual = f", usually {rtt.baseline_us / 1e3:.2f} ms" if rtt.baseline_us else ""
        held = (
            f"probes passed for {self.hold_s:g} s" if self.probation and not self.probation.over else "probation over"
        )
        return f"{held}; round trip {rtt.ewma_us / 1e3:.2f} ms{usual}"

    def _settle(self) -> list[Decision]:
        if self._docket.held:
            self._restart()
        return self._docket.settle()

    def _look(self, now: float) -> None:
        if self._docket.own.look(now) > _SLEPT_S:
            self.sleeps += 1
            self._restart()

    def _restart(self) -> None:
        """Judge from here on only by what comes from here on."""
        self._docket.held = False
        self._docket.doubts.clear()
        self._link.restart()
        self._engine.restart()

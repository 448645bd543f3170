"""A judge in virtual time: carries out its decisions as a shell would, against a world that tests describe."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from detectors import evidence as ev
from detectors.evidence import Decision, Evidence, Phase, Report
from detectors.rules import Rules
from detectors.verdict import Judge
from recovery.config import Settings
from recovery.registry import NodeState

STEP = 0.01
POLL_S = 0.1
"""Pause between two questions of the agent to its engine."""
RULES = Rules.of(Settings())
SERVING = Report(epoch=1, phase=Phase.SERVING)
BUSY = replace(SERVING, running=2)


@dataclass
class World:
    """What the judge's shell would meet."""

    report: Report = SERVING
    pong_after: float | None = 0.001
    """Round trip, s; None: no pongs."""
    host_after: float | None = 0.001
    """Time of a plain connection to the agent's host; None: silent."""
    host_refuses: bool = False
    status_after: float | None = 0.002
    """Time of a direct status call; None: silent."""
    probe_after: float | None = 0.05
    """Time of a micro-inference; None: never."""
    probe_says: Evidence | None = None
    """Answer of the probe where it is not just passed or late."""
    tokens_per_s: float = 0.0
    """Movement of the counter."""
    engine_answers: bool = True
    """Whether the engine answers its agent's questions for the counter."""
    cpu_share: float = 0.0
    """Share of the time in which the engine uses a CPU."""
    wait_share: float = 0.0
    """Share of the time in which it waits for one."""
    clock_ahead: float = 5_000.0
    """The agent's clock less ours."""


@dataclass
class Courtroom:
    """Runs one judge."""

    judge: Judge
    world: World = field(default_factory=World)
    now: float = 1_000.0
    said: list[tuple[float, Decision]] = field(default_factory=list)
    stream_up: bool = True
    _pinged_at: float = 0.0
    _due: list[tuple[float, Callable[[], Evidence | None]]] = field(default_factory=list)
    _counter: float = 0.0
    _cpu: float = 0.0
    _wait: float = 0.0
    _polled_at: float = -1.0
    _answered_at: float = 0.0
    _known: int = 0
    _probe_began: float | None = None

    @property
    def verdicts(self) -> list[ev.Dead]:
        """Every death declared so far."""
        return [decision for _, decision in self.said if isinstance(decision, ev.Dead)]

    def tell(self, evidence: Evidence) -> None:
        """Give evidence now."""
        self._carry_out(self.judge.take(evidence, self.now))

    def sleep(self, seconds: float) -> None:
        """Be stopped: time passes, nobody looks."""
        self.now += seconds

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> float:
        """Let time pass; return how much did."""
        began = self.now
        while self.now - began < seconds and not until():
            self.now += STEP
            self._live()
            while due := [entry for entry in self._due if entry[0] <= self.now]:
                entry = due[0]
                self._due.remove(entry)
                evidence = entry[1]()
                if evidence is not None:
                    self.tell(evidence)
            if self.stream_up and self.now >= self._pinged_at + self.judge.ping_interval_s - STEP / 10:
                self._ping()
            self._carry_out(self.judge.tick(self.now))
        return self.now - began

    def _ping(self) -> None:
        seq = self.judge.ping(self.now)
        self._pinged_at = self.now
        after = self.world.pong_after
        if after is not None:
            # Written by the agent half way.
            back_at = self.now + after
            self._due.append((self.now + after / 2, lambda: self._answer(seq, after, back_at)))

    def _answer(self, seq: int, after: float, back_at: float) -> None:
        pong = ev.Pong(seq, after * 1e6, self._report())
        self._due.append((back_at, lambda: pong))

    def _live(self) -> None:
        world = self.world
        self._counter += world.tokens_per_s * STEP
        self._cpu += world.cpu_share * STEP
        self._wait += world.wait_share * STEP
        if self.now - self._polled_at >= POLL_S - STEP / 2:
            self._polled_at = self.now
            if world.engine_answers:
                self._answered_at, self._known = self.now, int(self._counter)

    def _report(self) -> Report:
        """What the agent knows: the counter as last answered, CPU and waiting as of now."""
        report = self.world.report
        return replace(
            report,
            progress=report.progress + self._known,
            age_s=self.now - self._answered_at,
            cpu_s=self._cpu,
            wait_s=self._wait,
            at_s=self.now + self.world.clock_ahead,
            probe_s=0.0 if self._probe_began is None else max(0.0, self.now - self._probe_began),
        )

    def _carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self.said.append((self.now, decision))
            if isinstance(decision, ev.Knock):
                self._knock(decision.deadline_s)
            elif isinstance(decision, ev.Confirm):
                self._confirm(decision.deadline_s)
            elif isinstance(decision, ev.Probe):
                self._probe(decision)

    def _knock(self, deadline: float) -> None:
        after = self.world.host_after
        if self.world.host_refuses:
            self._due.append((self.now + 0.001, lambda: ev.HostSilent("connection refused", refused=True)))
        elif after is None or after > deadline:
            self._due.append((self.now + deadline, lambda: ev.HostSilent("no connection")))
        else:
            self._due.append((self.now + after, ev.HostAnswered))

    def _confirm(self, deadline: float) -> None:
        after = self.world.status_after
        if after is None or after > deadline:
            self._due.append((self.now + deadline, lambda: ev.SecondPathFailed("silent")))
        else:
            self._due.append((self.now + after, lambda: ev.SecondPathAnswered(self._report())))

    def _probe(self, order: ev.Probe) -> None:
        began, after, says = self.now + order.delay_s, self.world.probe_after, self.world.probe_says
        if says is not None:
            self._due.append((began + 0.01, lambda: says))
            return
        late = after is None or after > order.deadline_s
        self._due.append((began, self._begin_probe))
        self._due.append((began + (order.deadline_s if late else after or 0.0), lambda: self._end_probe(late, after)))

    def _begin_probe(self) -> None:
        self._probe_began = self.now

    def _end_probe(self, late: bool, after: float | None) -> Evidence:
        self._probe_began = None
        return ev.ProbeLate() if late else ev.ProbePassed(after or 0.0)


def open_court(state: NodeState = NodeState.ALIVE, world: World | None = None, weight: float = 1.0) -> Courtroom:
    """Return a courtroom that has run for three seconds of good weather."""
    court = Courtroom(Judge(RULES, 1, state, 1_000.0, weight=weight, slots=4))
    court.world = (
        World()
        if world is None
        else replace(
            world, pong_after=0.001, probe_says=None, probe_after=world.probe_after or 0.05, engine_answers=True
        )
    )
    court.run(3.0)
    if world is not None:
        court.world = world
    return court

"""A judge in virtual time: carries out its decisions as a shell would, against a world that tests describe."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from detectors import evidence as ev
from detectors.evidence import Decision, Evidence, Phase, Report
from detectors.rules import Rules
from detectors.verdict import Judge
from recovery.config import Settings
from recovery.registry import NodeState

STEP = 0.02
RULES = Rules.of(Settings())
SERVING = Report(epoch=1, phase=Phase.SERVING)
BUSY = replace(SERVING, running=2)


@dataclass
class World:
    """What the judge's shell would meet."""

    report: Report = SERVING
    pong_after: float | None = 0.001
    """Round trip, s; None: no pongs."""
    status_after: float | None = 0.002
    """Time of a direct status call; None: silent."""
    probe_after: float | None = 0.05
    """Time of a micro-inference; None: never."""
    probe_says: Evidence | None = None
    """Answer of the probe where it is not just passed or late."""
    tokens_per_s: float = 0.0
    """Movement of the counter."""


@dataclass
class Courtroom:
    """Runs one judge."""

    judge: Judge
    world: World = field(default_factory=World)
    now: float = 1_000.0
    said: list[tuple[float, Decision]] = field(default_factory=list)
    stream_up: bool = True
    _next_ping: float = 0.0
    _due: list[tuple[float, Callable[[], Evidence]]] = field(default_factory=list)
    _counter: float = 0.0

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
            self._counter += self.world.tokens_per_s * STEP
            for entry in [entry for entry in self._due if entry[0] <= self.now]:
                self._due.remove(entry)
                self.tell(entry[1]())
            if self.stream_up and self.now >= self._next_ping:
                self._ping()
            self._carry_out(self.judge.tick(self.now))
        return self.now - began

    def _ping(self) -> None:
        seq = self.judge.ping(self.now)
        self._next_ping = self.now + self.judge.ping_interval_s
        after = self.world.pong_after
        if after is not None:
            self._due.append((self.now + after, lambda: ev.Pong(seq, after * 1e6, self._report())))

    def _report(self) -> Report:
        return replace(self.world.report, progress=self.world.report.progress + int(self._counter))

    def _carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self.said.append((self.now, decision))
            if isinstance(decision, ev.Confirm):
                self._confirm(decision.deadline_s)
            elif isinstance(decision, ev.Probe):
                self._probe(decision)

    def _confirm(self, deadline: float) -> None:
        after = self.world.status_after
        if after is None or after > deadline:
            self._due.append((self.now + deadline, lambda: ev.SecondPathFailed("silent")))
        else:
            self._due.append((self.now + after, lambda: ev.SecondPathAnswered(self._report())))

    def _probe(self, order: ev.Probe) -> None:
        after, says = self.world.probe_after, self.world.probe_says
        if says is not None:
            self._due.append((self.now + order.delay_s + 0.01, lambda: says))
        elif after is None or after > order.deadline_s:
            self._due.append((self.now + order.delay_s + order.deadline_s, ev.ProbeLate))
        else:
            self._due.append((self.now + order.delay_s + after, lambda: ev.ProbePassed(after)))


def open_court(state: NodeState = NodeState.ALIVE, world: World | None = None, weight: float = 1.0) -> Courtroom:
    """Return a courtroom that has run for three seconds of good weather."""
    court = Courtroom(Judge(RULES, 1, state, 1_000.0, weight=weight, slots=4))
    court.world = World() if world is None else replace(world, pong_after=0.001, probe_says=None)
    court.run(3.0)
    if world is not None:
        court.world = world
    return court

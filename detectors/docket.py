"""One node's standing under one epoch: its state, what is in doubt, what was decided; shared by the cases against it.

Pure. The only place where a state becomes DEAD.
"""

from detectors.evidence import ChangeState, Confirm, Dead, Decision, Held, Probe
from detectors.measures import OwnTime, Rtt
from detectors.rules import Rules
from recovery.registry import NodeState

JUDGED = frozenset({NodeState.STARTING, NodeState.ALIVE, NodeState.SUSPECT, NodeState.PROBATION})
"""States in which a node may be declared dead; in all others a job or an operator has it in hand."""


class Docket:
    """State, doubts and decisions."""

    def __init__(self, rules: Rules, epoch: int, now: float, rtt: Rtt | None) -> None:
        self.rules = rules
        self.epoch = epoch
        self.state = NodeState.STARTING
        self.weight = 0.0
        self.blind = False
        self.own = OwnTime(now)
        self.rtt = rtt or Rtt(rules.ewma_alpha, rules.pong_deadline_s, rules.pong_deadline_max_s)
        self.doubts: dict[str, str] = {}
        """What stands against the node, by kind: link, lease, stall, probe."""
        self.before_death = (self.state, self.weight)
        self.held = False
        """A verdict was held back: the cases must start anew."""
        self._decisions: list[Decision] = []

    @property
    def now(self) -> float:
        """Own time, s."""
        return self.own.now

    @property
    def judged(self) -> bool:
        """Whether this node may be declared dead now."""
        return self.state in JUDGED

    def decide(self, decision: Decision) -> None:
        """Have the shell do something."""
        self._decisions.append(decision)

    def die(self, cause: str, evidence: str, *, proof: bool = False) -> None:
        """Declare the node dead, unless it is not to be judged, or the sentinel may be blind and nothing is proven."""
        if not self.judged:
            return
        if self.blind and not proof:
            self.held = True
            self.decide(Held(cause, evidence))
            return
        self.before_death = (self.state, self.weight)
        self.state, self.weight = NodeState.DEAD, 0.0
        self.doubts.clear()
        # Other state changes of the same look are overtaken; what was asked must still be asked.
        asked = [decision for decision in self._decisions if isinstance(decision, Confirm | Probe)]
        self._decisions = [Dead(cause, evidence, proof), *asked]

    def change(self, state: NodeState, weight: float, why: str) -> None:
        """Give the node another state or weight."""
        if (state, weight) != (self.state, self.weight):
            self.state, self.weight = state, weight
            self.decide(ChangeState(state, weight, why))

    def settle(self) -> list[Decision]:
        """Return what was decided. SUSPECT is what an ALIVE node is while anything stands against it."""
        if self.state is NodeState.ALIVE and self.doubts:
            self.change(NodeState.SUSPECT, self.weight, "; ".join(self.doubts.values()))
        elif self.state is NodeState.SUSPECT and not self.doubts:
            self.change(NodeState.ALIVE, self.weight, "cleared")
        decisions, self._decisions = self._decisions, []
        return decisions

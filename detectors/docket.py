"""One node's standing under one epoch: its state, what is in doubt, what was decided; shared by the cases against it.

Pure. The only place where a state becomes DEAD.
"""

from detectors.evidence import ChangeState, Confirm, Dead, Decision, Held, Knock, Probe, Vote
from detectors.measures import OwnTime, Rtt
from detectors.rules import Rules
from recovery.registry import NodeState

JUDGED = frozenset({NodeState.STARTING, NodeState.ALIVE, NodeState.SUSPECT, NodeState.PROBATION})
"""States in which a node may be declared dead; in all others a job or an operator has it in hand."""

_VOTE_S = 0.2
"""Pause between two votes for the same death."""


class Docket:
    """State, doubts and decisions."""

    def __init__(self, rules: Rules, epoch: int, now: float, rtt: Rtt) -> None:
        self.rules = rules
        self.epoch = epoch
        self.state = NodeState.STARTING
        self.weight = 0.0
        self.blind = False
        self.starved = False
        """The sentinel itself is late: what is late then is not for the world to know."""
        self.majority_needed = False
        self.own = OwnTime(now)
        self.rtt = rtt
        self.doubts: dict[str, str] = {}
        """What stands against the node, by kind: link, lease, stall, probe."""
        self.withheld: dict[str, str] = {}
        """Why it takes no new work although it lives, by kind: lease, gpu."""
        self.tokens_at = -1e9
        """When a gateway last had a token from its engine."""
        self.before_death = (self.state, self.weight)
        self.held = False
        """A verdict was held back: the cases must start anew."""
        self._weight_before = 1.0
        self._voted_at = -1e9
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

    def die(self, cause: str, evidence: str, *, proof: bool = False, took_s: float = 0.0) -> None:
        """Declare the node dead, or vote for it where others must agree.

        Unless it is not to be judged, or the sentinel may be blind and nothing is proven.
        """
        if not self.judged:
            return
        if self.blind and not proof:
            self.held = True
            self.decide(Held(cause, evidence))
        elif self.majority_needed and not proof:
            if self.now - self._voted_at >= _VOTE_S:
                self._voted_at = self.now
                self.decide(Vote(cause, evidence, took_s))
        else:
            self._bury(Dead(cause, evidence, proof, took_s))

    def elected(self, cause: str, evidence: str, took_s: float) -> None:
        """Most sentinels agree; so it is, if we still do."""
        if self.judged and not self.blind and self.now - self._voted_at <= 2 * _VOTE_S:
            self._bury(Dead(cause, evidence, proof=False, took_s=took_s))

    def change(self, state: NodeState, weight: float, why: str) -> None:
        """Give the node another state or weight."""
        if (state, weight) != (self.state, self.weight):
            self.state, self.weight = state, weight
            self.decide(ChangeState(state, weight, why))

    def settle(self) -> list[Decision]:
        """Return what was decided. SUSPECT is what an ALIVE node is while anything stands against it.

        A starved sentinel begins and ends no suspicion by itself: hundreds of them would starve it further.
        """
        decisions = self._decisions
        quiet = self.state is NodeState.ALIVE and not self.doubts
        if not self.withheld and (quiet or (self.starved and self.weight)):
            if not decisions:
                return []
            self._decisions = []
            return decisions
        against = self.doubts | self.withheld
        if self.state is NodeState.ALIVE and against:
            self._weight_before = self.weight
            self.change(NodeState.SUSPECT, 0.0 if self.withheld else self.weight, "; ".join(against.values()))
        elif self.state is NodeState.SUSPECT:
            if not against:
                self.change(NodeState.ALIVE, self._weight_before, "cleared")
            elif self.withheld and self.weight:
                self._weight_before = self.weight
                self.change(NodeState.SUSPECT, 0.0, "; ".join(against.values()))
            elif not self.withheld and not self.weight:
                self.change(NodeState.SUSPECT, self._weight_before, "; ".join(against.values()))
        decisions, self._decisions = self._decisions, []
        return decisions

    def _bury(self, verdict: Dead) -> None:
        self.before_death = (self.state, self.weight)
        self.state, self.weight = NodeState.DEAD, 0.0
        self.doubts.clear()
        # Other state changes of the same look are overtaken; what was asked must still be asked.
        asked = [decision for decision in self._decisions if isinstance(decision, Knock | Confirm | Probe)]
        self._decisions = [verdict, *asked]

"""One sentinel's part in watching one node: primary or beside it, and how many must agree (design, section 5).

Pure: times are passed in, in seconds.
"""

from detectors.ballot import Ballot
from detectors.docket import JUDGED
from detectors.evidence import Elected, Vote
from detectors.rules import Rules
from detectors.verdict import Judge
from recovery.registry import SERVING, Node, NodeState


class Seat:
    """The first watcher of a node is its primary: it writes states, weights and figures.

    The others judge and vote beside it, publish what is proven, and go on in its place when it is gone.
    """

    def __init__(self, sentinel: str, watchers: tuple[str, ...]) -> None:
        self._sentinel = sentinel
        self._watchers = watchers
        self._ballot = Ballot()
        self.primary = self.chosen
        """Whether this sentinel writes the node's state."""

    @property
    def chosen(self) -> bool:
        """Whether it is to be the primary, once it has read what the last one wrote."""
        return self._watchers[:1] == (self._sentinel,)

    @property
    def majority_needed(self) -> bool:
        """Whether others must agree to an unproven death."""
        return self._watchers != (self._sentinel,)

    def assign(self, watchers: tuple[str, ...]) -> None:
        """Take in who watches this node now; this sentinel may be none of them."""
        self._watchers = watchers
        self.primary = self.primary and self.chosen

    def cast(self, sentinel: str, vote: Vote, at: float) -> None:
        """Take a vote, given at `at`."""
        self._ballot.cast(sentinel, vote, at)

    def elected(self, now: float) -> Elected | None:
        """Return what most watchers hold now."""
        return self._ballot.result(self._watchers, now)

    def restart(self) -> None:
        """Another epoch: votes on the last one say nothing."""
        self._ballot = Ballot()


def judge_for(rules: Rules, node: Node, before: Judge | None, now: float) -> Judge:
    """Return a judge of the node as the registry shows it; `before`: this sentinel's judge of its last epoch."""
    state = node.state
    if before is not None and state is NodeState.STOPPED:
        state = NodeState.STARTING  # a stopped node under a new epoch is on its way back
    return Judge(
        rules,
        node.epoch,
        state,
        now,
        weight=node.weight,
        slots=node.slots,
        baseline_us=node.baseline_us,
        hold_s=node.hold_s,
        before=before,
    )


def follows(judge: Judge, node: Node) -> bool:
    """Whether a judge beside the primary is behind a step that only the primary decides."""
    if judge.state is NodeState.STARTING:
        return node.state is not NodeState.STARTING
    return judge.state is NodeState.PROBATION and node.state in SERVING


def inherits(judge: Judge, node: Node) -> bool:
    """Whether a judge that becomes the primary's takes over what the last one wrote, instead of its own view.

    Weights of a probation are steps already taken; doubts are each sentinel's own.
    """
    if node.epoch != judge.epoch or not {node.state, judge.state} <= JUDGED:
        return False
    if (node.state, node.weight) == (judge.state, judge.weight):
        return node.state is NodeState.PROBATION and node.hold_s > judge.hold_s  # the last primary saw failures
    return NodeState.PROBATION in (node.state, judge.state) or judge.state is NodeState.STARTING

"""What a judge is told (evidence) and what it answers (decisions).

Plain values: no protobuf, no sockets, so that judging stays pure.
"""

from dataclasses import dataclass
from enum import IntEnum

from recovery.registry import NodeState


class Phase(IntEnum):
    """An engine's phase as its agent reports it (numbers of `protocol/unbroken.proto`)."""

    UNSPECIFIED = 0
    EMPTY = 1
    STARTING = 2
    SERVING = 3
    DOWN = 4
    FENCED = 5
    RECLAIMING = 6
    FAILED = 7


@dataclass(frozen=True, slots=True)
class Report:
    """An agent's account of its node."""

    epoch: int
    phase: Phase
    ready: bool = True
    progress: int = 0
    """The engine loop's own counter."""
    still_ms: int = 0
    """The agent's own measure of the counter standing still while work was pending; for the record."""
    running: int = 0
    waiting: int = 0
    free_ratio: float = 1.0
    engine_url: str = ""
    detail: str = ""

    @property
    def pending(self) -> bool:
        """Whether the engine has work, so that its counter ought to move."""
        return self.running + self.waiting > 0

    @property
    def serving(self) -> bool:
        """Whether the engine is in the phase in which its progress may be judged."""
        return self.phase is Phase.SERVING and self.ready


# ---- evidence -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pong:
    """The agent answered a ping."""

    seq: int
    rtt_us: float
    report: Report


@dataclass(frozen=True, slots=True)
class LinkUp:
    """A stream to the agent is open; pings flow."""


@dataclass(frozen=True, slots=True)
class LinkBroken:
    """The stream ended or could not be opened."""

    detail: str


@dataclass(frozen=True, slots=True)
class LinkRejected:
    """The agent refuses our token: an error in the settings, no sign of death."""


@dataclass(frozen=True, slots=True)
class SecondPathAnswered:
    """A direct question on a fresh connection was answered, be it with a refusal (no report)."""

    report: Report | None = None


@dataclass(frozen=True, slots=True)
class SecondPathFailed:
    """A direct question on a fresh connection was refused by the host or not answered in time."""

    detail: str


@dataclass(frozen=True, slots=True)
class EngineDown:
    """The agent's notice: the engine process is gone, or never came up. Proof."""

    epoch: int
    cause: str
    evidence: str


@dataclass(frozen=True, slots=True)
class AgentStopping:
    """The agent's notice: it stops in good order."""


@dataclass(frozen=True, slots=True)
class ProbeDue:
    """The random pause between two periodic probes is over."""


@dataclass(frozen=True, slots=True)
class ProbePassed:
    """A token generated for our probe arrived in time."""

    took_s: float


@dataclass(frozen=True, slots=True)
class ProbeLate:
    """Our own token did not arrive before the deadline."""

    detail: str = "no token before the deadline"


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The engine could not be reached, broke off, answered 5xx, or answered without a token."""

    detail: str
    answered: bool = False
    """Whether the engine itself answered: then at least the way to it is right."""


@dataclass(frozen=True, slots=True)
class ProbeNeutral:
    """The probe says nothing: 4xx, or it was called off."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The agent's lease ran out in Redis."""


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """The agent's lease is there."""


@dataclass(frozen=True, slots=True)
class TokensSeen:
    """A gateway receives tokens from this engine."""


@dataclass(frozen=True, slots=True)
class UpstreamBroken:
    """A gateway's connection to the engine broke."""

    detail: str = ""


Evidence = (
    Pong
    | LinkUp
    | LinkBroken
    | LinkRejected
    | SecondPathAnswered
    | SecondPathFailed
    | EngineDown
    | AgentStopping
    | ProbeDue
    | ProbePassed
    | ProbeLate
    | ProbeFailed
    | ProbeNeutral
    | LeaseExpired
    | LeaseHeld
    | TokensSeen
    | UpstreamBroken
)


# ---- decisions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dead:
    """The verdict."""

    cause: str
    """process_exit, start_failed, link, lease, hang, unreachable."""
    evidence: str
    proof: bool
    """The process is known to be gone; otherwise the death is concluded from silence."""


@dataclass(frozen=True, slots=True)
class ChangeState:
    """The node's state or weight is another one now."""

    state: NodeState
    weight: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Confirm:
    """Ask the agent directly, on a fresh connection; answer with SecondPathAnswered or SecondPathFailed."""

    deadline_s: float


@dataclass(frozen=True, slots=True)
class Probe:
    """Run a micro-inference now; answer with one Probe… evidence."""

    deadline_s: float
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reconnect:
    """The stream is stuck though the agent answers: open a new one."""


@dataclass(frozen=True, slots=True)
class MovedOn:
    """The agent works under a newer epoch: look it up and judge that one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Held:
    """A verdict was due but is held back, because the sentinel itself may be blind."""

    cause: str
    evidence: str


Decision = Dead | ChangeState | Confirm | Probe | Reconnect | MovedOn | Held

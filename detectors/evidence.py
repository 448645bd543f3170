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
    COMPILING = 8


class Gpu(IntEnum):
    """What is known of a node's GPUs (numbers of `protocol/unbroken.proto`)."""

    NONE = 0
    OK = 1
    LOST = 2
    TELEMETRY_LOST = 3
    DRIVER_UNRESPONSIVE = 4


@dataclass(frozen=True, slots=True)
class Report:
    """An agent's account of its node."""

    epoch: int
    phase: Phase
    ready: bool = True
    progress: int = 0
    """The engine loop's own counter."""
    running: int = 0
    waiting: int = 0
    free_ratio: float = 1.0
    detail: str = ""
    age_s: float = 0.0
    """Since the engine last answered the agent's question for its counter."""
    cpu_s: float = 0.0
    """CPU time the engine's processes have used since their start."""
    wait_s: float = 0.0
    """Time in which they had to wait for a CPU or a disk."""
    sample_age_s: float = 0.0
    """Age of `cpu_s`, `wait_s` and `halted`."""
    halted: bool = False
    """An engine process is stopped by a signal."""
    computes_on_cpu: bool = False
    """The model runs on the CPU: there, CPU time is work; beside a GPU it may be spinning."""
    prefilling: int = 0
    """Requests whose prompt is being computed."""
    at_s: float = 0.0
    """When it was written, by the agent's clock; what it says is judged by that clock, for reports may be delayed."""
    probe_s: float = 0.0
    """How long a probe has been under way in the engine; 0: none is."""
    lease_held: bool = True
    gpu: Gpu = Gpu.NONE
    gpu_detail: str = ""

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
    report: Report | None
    """None: nothing new; the node is at rest, and its last report is hardly older."""


@dataclass(frozen=True, slots=True)
class Rested:
    """What a node at rest reported last; told late, when it is at rest no more."""

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
    """A direct question on a fresh connection was refused or not answered in time."""

    detail: str


@dataclass(frozen=True, slots=True)
class HostAnswered:
    """The agent's host takes connections, which its kernel does even for a stopped agent: the link is good."""


@dataclass(frozen=True, slots=True)
class HostSilent:
    """No try to connect was taken in time, or one was refused."""

    detail: str
    refused: bool = False
    """The host is there, but nothing listens any more."""


@dataclass(frozen=True, slots=True)
class EngineDown:
    """The agent's notice: the engine process is gone, or never came up. Proof."""

    epoch: int
    cause: str
    evidence: str
    age_s: float = 0.0
    """Since the agent saw it."""


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

    age_s: float = 0.0
    """Since the last one."""


@dataclass(frozen=True, slots=True)
class UpstreamBroken:
    """A gateway's connection to the engine broke, or its streams there have stood still for unusually long."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Elected:
    """Most of the living sentinels that watch this node hold it for dead (design, section 5)."""

    cause: str
    evidence: str
    took_s: float = 0.0


Evidence = (
    Pong
    | Rested
    | LinkUp
    | LinkBroken
    | LinkRejected
    | SecondPathAnswered
    | SecondPathFailed
    | HostAnswered
    | HostSilent
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
    | Elected
)


# ---- decisions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dead:
    """The verdict."""

    cause: str
    """process_exit, gpu_lost, start_failed, link, agent, lease, hang, unreachable."""
    evidence: str
    proof: bool
    """The process is known to be gone; otherwise the death is concluded from silence."""
    took_s: float = 0.0
    """From the last sign of life to the verdict."""


@dataclass(frozen=True, slots=True)
class Vote:
    """This sentinel alone holds the node for dead; others must agree. Repeated for as long as it does."""

    cause: str
    evidence: str
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ChangeState:
    """The node's state or weight is another one now."""

    state: NodeState
    weight: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Knock:
    """Open plain connections to the agent's address until one is taken; answer with HostAnswered or HostSilent."""

    deadline_s: float
    every_s: float
    """Pause between two tries: each is a packet of its own, so that one lost packet proves nothing."""


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


Decision = Dead | Vote | ChangeState | Knock | Confirm | Probe | Reconnect | MovedOn | Held

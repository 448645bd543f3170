"""What the helper process reads of the GPUs, as it crosses the pipe: what is not known is absent, never 0."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

ACTIONS: dict[int, str] = {
    0: "none", 1: "GPU reset", 2: "node reboot", 3: "drain P2P", 4: "drain and reset", 5: "recover IMEX domain",
    6: "bus reset", 7: "system reboot",
}  # fmt: skip
"""NVML's recovery actions."""

_AT_ONCE = frozenset({1, 2, 6, 7})
"""Those after which no GPU process can go on; a drain lets running work end."""


@dataclass(slots=True)
class Device:
    """A GPU, or a slice of one (MIG)."""

    index: int
    """Its place in the driver's order (by PCI address), as with CUDA_DEVICE_ORDER=PCI_BUS_ID; a slice has its GPU's."""
    uuid: str = ""
    parent: str = ""
    """UUID of a slice's GPU."""
    instance: int | None = None
    """A slice's GPU instance id, which Xid events carry."""
    name: str = ""
    memory_total: int | None = None
    """Bytes."""
    memory_used: int | None = None
    unified: bool = False
    """It has no memory of its own: the figures are the host's."""
    utilisation: float | None = None
    """0..1."""
    temperature_c: float | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded or the GPU was reset."""
    pids: list[int] | None = None
    recovery: int | None = None
    """What the driver wants done, a key of `ACTIONS`; None: it does not tell."""
    lost: str = ""
    """The driver's word for a GPU that is gone or needs a reset."""
    failing: bool = False
    """No question was answered other than with an error that says nothing."""
    unknown: dict[str, str] = field(default_factory=dict)
    """What could not be read → the driver's error."""

    @property
    def title(self) -> str:
        """What to call it."""
        return self.uuid or f"GPU {self.index}"

    @property
    def needs(self) -> str:
        """Why no GPU process can use it any more; empty while one can."""
        if self.lost:
            return self.lost
        return f"the driver asks for a {ACTIONS[self.recovery]}" if self.recovery in _AT_ONCE else ""

    @property
    def remarks(self) -> list[str]:
        """What is worth knowing beside the figures."""
        found = ["unified memory: the host's figures"] if self.unified else []
        if self.recovery and self.recovery not in _AT_ONCE:
            found.append(f"the driver asks for: {ACTIONS.get(self.recovery, self.recovery)}")
        if self.unknown:
            found.append("unknown: " + ", ".join(f"{what} ({why})" for what, why in sorted(self.unknown.items())))
        return found


@dataclass(slots=True)
class Reading:
    """One answer."""

    library: Literal["ok", "none", "failing"]
    """``none``: there is nothing to read here; ``failing``: there is, but every call is an error."""
    detail: str = ""
    devices: list[Device] = field(default_factory=list)

    def dump(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> "Reading":
        """Build it from `dump`'s values. Raises KeyError, TypeError."""
        devices = [Device(**device) for device in values["devices"]]
        return cls(values["library"], values["detail"], devices)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """The driver reported an error of a GPU."""

    code: int
    index: int
    uuid: str
    """Of the whole GPU."""
    instance: int | None = None
    """The slice it concerns; None: all of the GPU."""

"""What readings, silence and Xids make of a node's GPUs. Pure: no clock, no process.

Only a GPU that is lost is a death; trouble with its telemetry alone never is (requirements D11).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from node.gpu import xids
from node.gpu.devices import select
from node.gpu.reading import Device, Reading, XidEvent

_TIMEOUTS = 2
_KEEP = 4
"""Xids remembered for show, per node."""


class State(StrEnum):
    """How the node's GPUs stand, as the registry shows it."""

    NONE = ""
    """No GPU, or none that can be read."""
    OK = "GPU_OK"
    LOST = "GPU_LOST"
    TELEMETRY_LOST = "TELEMETRY_LOST"
    DRIVER_UNRESPONSIVE = "DRIVER_UNRESPONSIVE"


@dataclass(slots=True)
class _Fault:
    """A fatal Xid. It stands until its GPU is seen to have been reset, or the agent is started anew."""

    text: str
    seen: bool = False
    """Whether the GPU itself showed that it is broken: only then is a well GPU a sign of a reset."""


@dataclass(slots=True)
class Health:
    """The GPUs of one node; `wanted` names them (None: all)."""

    wanted: Sequence[str] | None = None
    state: State = State.NONE
    detail: str = ""
    devices: list[Device] = field(default_factory=list)
    """The node's own, as last read."""
    doubtful: bool = False
    """Whether the last reading says something new that one more must confirm."""
    notes: list[str] = field(default_factory=list)
    """Xids that are no death, newest last."""
    _timeouts: int = 0
    _expected: State = State.NONE
    """What a doubtful reading said."""
    _places: dict[str, int] = field(default_factory=dict)
    """UUID → where it was seen."""
    _own: set[str] = field(default_factory=set)
    """Whole GPUs that were this node's: they do not go away."""
    _faults: dict[str, _Fault] = field(default_factory=dict)
    _early: list[XidEvent] = field(default_factory=list)
    """Xids that came before the first reading."""

    def answer(self, reading: Reading) -> None:
        """Take in what the helper read."""
        self._timeouts = 0
        known = bool(self._places)
        if reading.library != "ok":
            for fault in self._faults.values():
                fault.seen = True
            # Libraries do not vanish from a host that has GPUs: then it is the way to them that is broken.
            none = reading.library == "none" and not known
            self._settle(State.NONE if none else State.TELEMETRY_LOST, reading.detail)
            return
        self._recognise(reading.devices)
        self.devices, missing = select(reading.devices, self.wanted, self._places)
        missing += sorted(self._own - {device.uuid for device in self.devices} - {part.parent for part in self.devices})
        self._own |= {device.uuid for device in self.devices if device.uuid and not device.parent}
        self._look_for_resets()
        self._settle(*self._assess(missing))
        early, self._early = self._early, []
        for event in early:
            self.xid(event)

    def silence(self, detail: str) -> None:
        """Take note of a question that was not answered in time."""
        self._timeouts += 1
        if self._timeouts >= _TIMEOUTS and self.state is not State.LOST:
            self._become(State.DRIVER_UNRESPONSIVE, detail)

    @property
    def unsettled(self) -> bool:
        """Whether the next reading is wanted soon: the last one was doubtful, or was none."""
        return self.doubtful or self._timeouts > 0

    def xid(self, event: XidEvent) -> bool:
        """Take note of an error the driver reports; whether it concerns one of the node's devices."""
        device = next((device for device in self.devices if _concerns(event, device)), None)
        if device is None:
            if not self.devices:
                self._early = [*self._early, event][-_KEEP:]
            return False
        row = xids.explain(event.code)
        text = f"{device.title}: Xid {event.code}, {row.name}: {row.meaning.value}"
        if xids.fatal(event.code, driver_tells=device.recovery is not None):
            self._faults[device.title] = _Fault(text)
            self._become(State.LOST, text)
        else:
            self.notes = [*self.notes, text][-_KEEP:]
        return True

    def lost(self, device: Device) -> str:
        """Return why a device is lost, empty while it is not."""
        fault = self._faults.get(device.title)
        return f"{device.title}: {device.needs}" if device.needs else fault.text if fault else ""

    def _recognise(self, devices: Sequence[Device]) -> None:
        """Note where each UUID is; a GPU that cannot say its own any more gets it from there."""
        for device in devices:
            if not device.uuid:
                whole = (uuid for uuid, index in self._places.items() if index == device.index and uuid[:4] != "MIG-")
                device.uuid = next(whole, "")
            self._places |= {uuid: device.index for uuid in (device.uuid, device.parent) if uuid}

    def _assess(self, missing: Sequence[str]) -> tuple[State, str]:
        broken = list(filter(None, map(self.lost, self.devices)))
        failing = [device for device in self.devices if device.failing]
        if broken:
            return State.LOST, "; ".join(broken)
        if not self.devices and not missing:
            return State.NONE, "none of the host's GPUs is this node's"
        if missing or (failing and len(failing) == len(self.devices)):
            texts = [f"{name}: not there" for name in missing]
            texts += [f"{device.title}: {next(iter(device.unknown.values()), 'unknown')}" for device in failing]
            return State.TELEMETRY_LOST, "; ".join(texts)
        remarks = [f"{device.title}: {remark}" for device in self.devices for remark in device.remarks]
        return State.OK, "; ".join(remarks + self.notes)

    def _settle(self, state: State, detail: str) -> None:
        """Believe a reading: what is worse than now, and the end of a loss, only when it is read twice."""
        if self.state is State.LOST and state is State.TELEMETRY_LOST:
            return  # it says nothing, least of all that the GPU is back
        better = state in (State.NONE, State.OK) and self.state is not State.LOST
        if state is self.state or better or (self.doubtful and self._expected is state):
            self._become(state, detail)
        else:
            self.doubtful, self._expected = True, state

    def _become(self, state: State, detail: str) -> None:
        self.state, self.detail, self.doubtful = state, detail, False

    def _look_for_resets(self) -> None:
        present = {device.title: device for device in self.devices}
        for title, fault in list(self._faults.items()):
            device = present.get(title)
            if device is None or device.needs or device.ecc_uncorrected:
                fault.seen = True
            elif fault.seen and not device.failing:
                del self._faults[title]


def _concerns(event: XidEvent, device: Device) -> bool:
    if event.uuid and event.uuid not in (device.uuid, device.parent):
        return False
    if not event.uuid and event.index != device.index:
        return False
    return event.instance is None or device.instance is None or event.instance == device.instance

"""A fake NVML: what `pynvml` would be on a host with the GPUs of a JSON file, which tests rewrite as they like.

It can raise, lie, block for ever, ignore SIGTERM, and stand in for a process that not even SIGKILL ends.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pynvml
from pynvml import *  # noqa: F403 - the real constants and exceptions
from pynvml import NVMLError

STATE = "FAKE_NVML"
"""Names the JSON file (see `FakeNvml`)."""
MODULE = "tests.rigs.fake_pynvml"
_EVERYWHERE = 0xFFFFFFFF

if os.environ.get("NVML_MODULE") == MODULE and "pytest" not in sys.modules:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class FakeNvml:
    """The GPUs of a test: change `state` and `save`.

    A device: uuid, name, memory [total, used], utilisation, temperature, ecc, pids, recovery, handle, mig, slices;
    instead of a value an error's name (``NOT_SUPPORTED``). Of all: init, everything (errors), block, stay_s, xids.
    """

    def __init__(self, path: Path, *devices: dict[str, Any]) -> None:
        self.path = path
        self.state: dict[str, Any] = {"devices": list(devices), "xids": []}
        self.save()

    def save(self, **changes: Any) -> None:
        """Let every process see the state from now on."""
        self.state |= changes
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.state))
        fresh.replace(self.path)

    def xid(self, code: int, index: int = 0, instance: int | None = None) -> None:
        """Have the driver report an error."""
        self.save(xids=[*self.state["xids"], {"code": code, "index": index, "instance": instance}])

    def blocked(self) -> list[int]:
        """Return the pids of all processes that ever blocked in the driver, oldest first."""
        path = self.path.with_suffix(".blocked")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def release(self) -> None:
        """Let what hangs like a process in an uninterruptible sleep end."""
        self.path.with_suffix(".release").touch()


def gpu(number: int, **changes: Any) -> dict[str, Any]:
    """Return a healthy GPU."""
    return {
        "uuid": f"GPU-{number:08x}-0000-0000-0000-000000000000", "name": "Fake H200", "memory": [80_000, 20_000],
        "utilisation": 30, "temperature": 40 + number, "ecc": 0, "pids": [4711], "recovery": 0, **changes,
    }  # fmt: skip


# ---- the module's functions -----------------------------------------------------------------------------------------


def nvmlInit() -> None:  # noqa: N802
    """Begin."""
    _call("init")


def nvmlDeviceGetCount() -> int:  # noqa: N802
    """Count."""
    return len(_call()["devices"])


def nvmlDeviceGetHandleByIndex(index: int) -> Any:  # noqa: N802
    """Find a GPU."""
    device = _call()["devices"][index]
    _value(device.get("handle", "fine"))
    return _pointer(index + 1)


def nvmlDeviceGetHandleByUUID(_uuid: str) -> NoReturn:  # noqa: N802
    """Fail: the real one does as soon as any GPU of the host is lost."""
    _raise("GPU_IS_LOST")


def nvmlDeviceGetUUID(handle: Any) -> str:  # noqa: N802
    """Tell."""
    return str(_field(handle, "uuid"))


def nvmlDeviceGetName(handle: Any) -> str:  # noqa: N802
    """Tell."""
    return str(_field(handle, "name"))


def nvmlDeviceGetMemoryInfo(handle: Any) -> Any:  # noqa: N802
    """Tell."""
    total, used = _field(handle, "memory")
    return SimpleNamespace(total=total, used=used)


def nvmlDeviceGetUtilizationRates(handle: Any) -> Any:  # noqa: N802
    """Tell."""
    return SimpleNamespace(gpu=_field(handle, "utilisation"), memory=0)


def nvmlDeviceGetTemperature(handle: Any, _sensor: int) -> Any:  # noqa: N802
    """Tell."""
    return _field(handle, "temperature")


def nvmlDeviceGetTotalEccErrors(handle: Any, _kind: int, _counter: int) -> Any:  # noqa: N802
    """Tell."""
    return _field(handle, "ecc")


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> list[Any]:  # noqa: N802
    """Tell."""
    return [SimpleNamespace(pid=pid) for pid in _field(handle, "pids")]


def nvmlDeviceGetFieldValues(handle: Any, _fields: list[int]) -> list[Any]:  # noqa: N802
    """Tell the recovery action."""
    action = _device(handle).get("recovery", "NOT_SUPPORTED")
    if isinstance(action, str):
        return [SimpleNamespace(nvmlReturn=getattr(pynvml, f"NVML_ERROR_{action}"), value=None)]
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=action))]


def nvmlDeviceGetMigMode(handle: Any) -> list[int]:  # noqa: N802
    """Tell."""
    device = _device(handle)
    mode = int(_value(device.get("mig", int("slices" in device))))
    return [mode, mode]


def nvmlDeviceGetMaxMigDeviceCount(_handle: Any) -> int:  # noqa: N802
    """Tell."""
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle: Any, at: int) -> Any:  # noqa: N802
    """Find a slice."""
    if at >= len(_device(handle)["slices"]):
        _raise("NOT_FOUND")
    return _pointer(_number(handle) * 100 + at)


def nvmlDeviceGetGpuInstanceId(handle: Any) -> int:  # noqa: N802
    """Tell."""
    return int(_field(handle, "instance"))


def nvmlEventSetCreate() -> Any:  # noqa: N802
    """Make a set."""
    return SimpleNamespace(registered=set(), told=0)


def nvmlDeviceRegisterEvents(handle: Any, _kinds: int, events: Any) -> None:  # noqa: N802
    """Register."""
    _value(_device(handle).get("events", "fine"))
    events.registered.add(_number(handle) - 1)


def nvmlEventSetWait_v2(events: Any, timeout_ms: int) -> Any:  # noqa: N802
    """Wait for an Xid."""
    end = time.monotonic() + timeout_ms / 1_000
    while time.monotonic() < end:
        for event in _state()["xids"][events.told :]:
            events.told += 1
            if event["index"] in events.registered:
                instance = _EVERYWHERE if event["instance"] is None else event["instance"]
                return SimpleNamespace(
                    device=_pointer(event["index"] + 1), eventType=pynvml.nvmlEventTypeXidCriticalError,
                    eventData=event["code"], gpuInstanceId=instance,
                )  # fmt: skip
        time.sleep(0.02)
    return _raise("TIMEOUT")


# ---- behind them ----------------------------------------------------------------------------------------------------


def _state() -> dict[str, Any]:
    state: dict[str, Any] = json.loads(Path(os.environ[STATE]).read_text())
    return state


def _call(*stages: str) -> dict[str, Any]:
    """Begin a call: it may never end, or end with an error."""
    state = _state()
    if state.get("block"):
        _block(Path(os.environ[STATE]), state.get("stay_s", 0))
    for stage in (*stages, "everything"):
        _value(state.get(stage, "fine"))
    return state


def _block(path: Path, stay_s: float) -> NoReturn:
    with path.with_suffix(".blocked").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if stay_s and os.fork() == 0:
        # No process can ignore SIGKILL. This child, in a session of its own, holds what the killed one held, as a
        # process in an uninterruptible sleep would.
        os.setsid()
        for fd in range(3):
            with contextlib.suppress(OSError):
                os.close(fd)
        end = time.monotonic() + stay_s
        while time.monotonic() < end and not path.with_suffix(".release").exists() and path.parent.exists():
            time.sleep(0.05)
        os._exit(0)
    agent = os.getppid()
    while os.getppid() == agent:  # for ever, but not as a leftover of a test
        time.sleep(0.1)
    os._exit(0)


def _raise(name: str) -> NoReturn:
    raise NVMLError(getattr(pynvml, f"NVML_ERROR_{name}"))


def _value(value: Any) -> Any:
    if isinstance(value, str) and hasattr(pynvml, f"NVML_ERROR_{value}"):
        _raise(value)
    return value


def _field(handle: Any, name: str) -> Any:
    return _value(_device(handle).get(name, "NOT_SUPPORTED"))


def _device(handle: Any) -> dict[str, Any]:
    number, state = _number(handle), _call()
    if number < 100:
        device: dict[str, Any] = state["devices"][number - 1]
        return device
    part: dict[str, Any] = state["devices"][number // 100 - 1]["slices"][number % 100]
    return part


def _pointer(number: int) -> Any:
    """Return a handle as the real module does: a new pointer object for every question."""
    return ctypes.cast(number, ctypes.POINTER(pynvml.struct_c_nvmlDevice_t))


def _number(handle: Any) -> int:
    return ctypes.addressof(handle.contents)

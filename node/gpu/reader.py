"""Reads GPUs through NVML, device by device: one that is lost spoils nothing for the others.

Runs in the helper process only: a sick driver never answers, and the caller then hangs with it.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from node.gpu.reading import Device, Reading

_MEMINFO = Path("/proc/meminfo")
_HOTTEST_C = 200
"""A temperature above is a lie."""


class _Lost(Exception):
    """The GPU is gone."""


class Reader:
    """Asks an NVML module (`pynvml`); `seen` is told of each whole GPU: index, UUID, handle."""

    def __init__(self, nvml: Any, seen: Callable[[int, str, Any], None] = lambda *_: None) -> None:
        self._nvml = nvml
        self._seen = seen
        self._ready = False
        # Errors by which the library says that there is nothing to read, and those that only decline one question.
        self._nothing = {
            nvml.NVML_ERROR_LIBRARY_NOT_FOUND,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
        }
        self._declined = {
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_NO_DATA,
        }
        self._gone = {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}

    def read(self, wanted: Sequence[str] | None) -> Reading:
        """Read the devices that may be among `wanted` (indexes and UUIDs; None: all). Raises nothing of NVML's."""
        nvml = self._nvml
        try:
            if not self._ready:
                nvml.nvmlInit()
                self._ready = True
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._ready = False
            return Reading("none" if error.value in self._nothing else "failing", str(error))
        devices = [device for index in range(count) if _possible(index, wanted) for device in self._at(index)]
        return Reading("ok", devices=devices) if count else Reading("none", "the driver has no GPU")

    def _at(self, index: int) -> Iterator[Device]:
        """Yield the GPU at an index, or its slices."""
        nvml = self._nvml
        device = Device(index)
        try:
            # By index, never by UUID: a lookup by UUID fails when any GPU of the host is lost.
            handle = self._ask(device, "handle", nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is None:
                device.failing = True
                yield device
                return
            device.uuid = _text(self._ask(device, "uuid", nvml.nvmlDeviceGetUUID, handle))
            self._seen(index, device.uuid, handle)
            sliced, slices = self._slices(handle)
            for each in slices:
                part = Device(index, parent=device.uuid)
                try:
                    self._fill(part, each, handle, sliced=True)
                except _Lost as lost:
                    part.lost = str(lost)
                yield part
            if not slices:
                self._fill(device, handle, handle, sliced=sliced)
                yield device
        except _Lost as lost:
            device.lost = str(lost)
            yield device

    def _slices(self, handle: Any) -> tuple[bool, list[Any]]:
        """Return whether the GPU is (or may be) sliced, and the slices that are visible here."""
        nvml = self._nvml
        probe, failures = Device(-1), _Failures()
        mode = self._ask(probe, "mode", nvml.nvmlDeviceGetMigMode, handle, failures=failures)
        if mode is None and failures.last != nvml.NVML_ERROR_NO_PERMISSION:
            return False, []
        if mode is not None and mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return False, []
        most = self._ask(probe, "slices", nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
        asked = (self._ask(probe, "slice", nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at) for at in range(most))
        return True, [each for each in asked if each is not None]

    def _fill(self, device: Device, handle: Any, whole: Any, *, sliced: bool) -> None:
        """Read everything; `whole` is the GPU itself, which answers what its slices cannot. Raises _Lost."""
        nvml = self._nvml
        failures = _Failures()
        if not device.uuid:
            device.uuid = _text(self._ask(device, "uuid", nvml.nvmlDeviceGetUUID, handle, failures=failures))
        device.name = _text(self._ask(device, "name", nvml.nvmlDeviceGetName, handle, failures=failures))
        if sliced and handle is not whole:
            device.instance = self._ask(device, "instance", nvml.nvmlDeviceGetGpuInstanceId, handle)
        self._memory(device, handle, failures, sliced=sliced)
        rates = self._ask(device, "utilisation", nvml.nvmlDeviceGetUtilizationRates, handle, failures=failures)
        if rates is not None and 0 <= rates.gpu <= 100:
            device.utilisation = rates.gpu / 100
        for each in {id(handle): handle, id(whole): whole}.values():
            if device.temperature_c is None:
                heat = self._ask(
                    device, "temperature", nvml.nvmlDeviceGetTemperature, each, nvml.NVML_TEMPERATURE_GPU,
                    failures=failures,
                )  # fmt: skip
                device.temperature_c = float(heat) if heat is not None and 0 < heat < _HOTTEST_C else None
        errors = self._ask(
            device, "ecc", nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC, failures=failures,
        )  # fmt: skip
        if errors is not None and errors < 2**63:  # all bits set: not available
            device.ecc_uncorrected = errors
        running = self._ask(device, "processes", nvml.nvmlDeviceGetComputeRunningProcesses, handle, failures=failures)
        device.pids = None if running is None else [process.pid for process in running]
        device.recovery = self._recovery(device, whole)
        device.failing = failures.all

    def _memory(self, device: Device, handle: Any, failures: "_Failures", *, sliced: bool) -> None:
        nvml = self._nvml
        memory = self._ask(device, "memory", nvml.nvmlDeviceGetMemoryInfo, handle, failures=failures)
        if memory is not None:
            if 0 <= memory.used <= memory.total and memory.total > 0:
                device.memory_total, device.memory_used = memory.total, memory.used
            else:
                device.unknown["memory"] = f"used {memory.used} of {memory.total} cannot be"
        elif not sliced and failures.last == nvml.NVML_ERROR_NOT_SUPPORTED:
            found = _host_memory()
            if found is not None:
                device.memory_total, device.memory_used = found
                device.unified = True
                device.unknown.pop("memory")

    def _recovery(self, device: Device, handle: Any) -> int | None:
        field = getattr(self._nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", None)
        if field is None:
            return None
        values = self._ask(device, "recovery action", self._nvml.nvmlDeviceGetFieldValues, handle, [field])
        # Most drivers before R565 do not know it, which is no news.
        device.unknown.pop("recovery action", None)
        if not values or values[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            return None
        return int(values[0].value.uiVal)

    def _ask(self, device: Device, what: str, question: Any, *args: Any, failures: "_Failures | None" = None) -> Any:
        """Return an answer, None for what cannot be known; the reason is noted. Raises _Lost."""
        nvml = self._nvml
        try:
            answer = question(*args)
        except nvml.NVMLError as error:
            if error.value in self._gone:
                raise _Lost(str(error)) from error
            if error.value == nvml.NVML_ERROR_UNINITIALIZED:
                self._ready = False
            device.unknown[what] = str(error)
            if failures is not None:
                failures.count(error.value, said_something=error.value in self._declined)
            return None
        device.unknown.pop(what, None)
        if failures is not None:
            failures.count(0, said_something=True)
        return answer


class _Failures:
    """Whether the driver still says anything about a device."""

    def __init__(self) -> None:
        self.all = True
        self.last = 0

    def count(self, code: int, *, said_something: bool) -> None:
        self.last = code
        self.all = self.all and not said_something


def _possible(index: int, wanted: Sequence[str] | None) -> bool:
    """Whether the GPU at an index may be wanted; what is not ours is best left alone."""
    return wanted is None or any(not name.isdigit() or int(name) == index for name in wanted)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _host_memory() -> tuple[int, int] | None:
    """Return the host's memory, all and used, in bytes."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        kib = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
        return kib["MemTotal"] * 1_024, (kib["MemTotal"] - kib["MemAvailable"]) * 1_024
    return None

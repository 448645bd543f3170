"""Listens for Xids in the driver's event set, in a thread of its own: they are told within moments.

Runs in the helper process only.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

_WAIT_MS = 500
_AGAIN_S = 1.0
_EVERYWHERE = 0xFFFFFFFF
"""Instance id of an event that concerns the whole GPU."""


class XidListener:
    """Registers GPUs as they are seen and tells each Xid: code, index, UUID of the GPU, instance or None."""

    def __init__(self, nvml: Any, tell: Callable[[int, int, str, int | None], None]) -> None:
        self._nvml = nvml
        self._tell = tell
        self._set: Any = None
        self._known: dict[int, tuple[int, str]] = {}
        """Address of a device's handle → index and UUID: a lost device cannot be asked who it is."""
        self._declined: set[int] = set()

    def register(self, index: int, uuid: str, handle: Any) -> None:
        """Listen for a GPU's Xids from now on, where its driver offers them."""
        nvml = self._nvml
        if index in self._declined or (index, uuid) in self._known.values():
            return
        try:
            if self._set is None:
                self._set = nvml.nvmlEventSetCreate()
                threading.Thread(target=self._listen, name="xids", daemon=True).start()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
        except nvml.NVMLError:
            self._declined.add(index)  # no events of this one: its state is still read
        else:
            self._known[_address(handle)] = (index, uuid)

    def _listen(self) -> None:
        nvml = self._nvml
        while True:
            try:
                event = nvml.nvmlEventSetWait_v2(self._set, _WAIT_MS)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    time.sleep(_AGAIN_S)  # e.g. a GPU is lost: the reader finds out which
                continue
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                index, uuid = self._whose(event.device)
                instance = None if event.gpuInstanceId == _EVERYWHERE else int(event.gpuInstanceId)
                self._tell(int(event.eventData), index, uuid, instance)

    def _whose(self, handle: Any) -> tuple[int, str]:
        known = self._known.get(_address(handle))
        if known is not None:
            return known
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(handle)
        except self._nvml.NVMLError:
            return -1, ""
        return -1, uuid.decode() if isinstance(uuid, bytes) else str(uuid)


def _address(handle: Any) -> int:
    """Return what a handle points to: two handles of one device are different objects in Python."""
    return ctypes.addressof(handle.contents)

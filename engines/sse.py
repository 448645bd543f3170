"""Server-sent events as engines write them: whole events out of any cut of the byte stream.

Pure: bytes in, payloads out. Comments are dropped; an event counts only once its blank line has come.
"""

from typing import NamedTuple

MAX_EVENT = 16 * 1024 * 1024
"""Bytes of one unfinished event kept at most; more is not an answer."""


class Event(NamedTuple):
    """One whole event: its name (empty as a rule) and its data lines joined."""

    name: str
    data: bytes


class Splitter:
    """Collects reads of one response body and returns the events each of them completes."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, read: bytes) -> list[Event]:
        """Return the events completed by ``read``. Raises ValueError when one grows past MAX_EVENT."""
        rest = self._rest + read if self._rest else read
        held = b""
        if b"\r" in rest:
            if rest.endswith(b"\r"):  # its \n may be in the next read
                rest, held = rest[:-1], b"\r"
            rest = rest.replace(b"\r\n", b"\n")
        whole, blank, rest = rest.rpartition(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > MAX_EVENT:
            raise ValueError(f"event longer than {MAX_EVENT} bytes")
        if not blank:
            return []
        events = []
        for block in whole.split(b"\n\n"):
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(Event("", block[6:]))
            elif (event := _parse(block)) is not None:
                events.append(event)
        return events

    @property
    def unfinished(self) -> bool:
        """Whether part of an event was left over."""
        return bool(self._rest.strip(b"\r\n"))


def _parse(block: bytes) -> Event | None:
    name, data = "", []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"error":  # llama.cpp's own way before it followed OpenAI's
            name = "error"
            data.append(value)
    return Event(name, b"\n".join(data)) if data else None

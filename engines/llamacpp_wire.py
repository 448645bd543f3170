"""What llama.cpp's server writes: events of an answer, tags, metrics, parsed.

Pure. An event that stands for an error becomes the exception it means.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from engines import sse
from engines.base import EngineBroken, EngineRejected

INVARIANT_UBATCH = 64
"""From this many rows on llama.cpp runs another attention kernel, whose sums differ in the last bits."""


def events(splitter: sse.Splitter, read: bytes) -> list[sse.Event]:
    """Return the events ``read`` completes. Raises EngineBroken when one never ends."""
    try:
        return splitter.feed(read)
    except ValueError as error:
        raise EngineBroken(str(error)) from error


def answer(event: sse.Event) -> dict[str, Any]:
    """Parse one event's data; an error event becomes the exception it stands for."""
    try:
        answer = orjson.loads(event.data)
    except ValueError as error:
        raise EngineBroken("an event of the answer is not JSON") from error
    if not isinstance(answer, dict):
        raise EngineBroken("an event of the answer is not an object")
    if event.name == "error" or "error" in answer:
        trouble = answer.get("error", answer)
        code = trouble.get("code") if isinstance(trouble, dict) else None
        if isinstance(code, int) and 400 <= code < 500:
            raise EngineRejected(code, event.data)
        raise EngineBroken("the engine reported an error in mid-answer")
    return answer


def own_tags(tags: list[str]) -> dict[str, str]:
    """Return the settings `llamacpp_server.settings_tags` published, by name."""
    own = (tag.removeprefix("unbroken:").partition("=") for tag in tags if tag.startswith("unbroken:"))
    return {name: value for name, _, value in own}


def invariant(tags: Mapping[str, str]) -> bool:
    """Whether the settings are those under which the same ids give the same next id (design, section 7)."""
    try:
        return tags["threads"] == "1" and int(tags["ubatch"]) < INVARIANT_UBATCH and tags["kv"] == "separate"
    except (KeyError, ValueError):
        return False


def prefilling(slot: Mapping[str, Any]) -> bool:
    """Whether a slot of `/slots` computes a prompt: it is at work and has no token of its answer yet."""
    if not slot.get("is_processing"):
        return False
    # A list of one, once per sequence; an object in older builds.
    found = slot.get("next_token")
    token = found[0] if isinstance(found, list) and found else found
    return isinstance(token, Mapping) and token.get("n_decoded") == 0


def metrics(read: bytes) -> dict[str, float]:
    """Parse the plain `name value` lines of Prometheus' text form."""
    pairs = (line.rsplit(" ", 1) for line in read.decode().splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}

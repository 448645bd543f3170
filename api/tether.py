"""Tether: a request's tie to one engine process (node, epoch), cut at once when that process is no longer trusted.

Reading an engine through it ends within a loop turn of the cut, even though a frozen engine's socket stays silent.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from recovery.registry import Node

T = TypeVar("T")


class Severed(Exception):
    """The tie was cut, or the engine was silent for too long; the message says which."""


class Tether:
    """One request's tie to ``node`` as it was when the tie was made."""

    __slots__ = ("_scope", "asked", "cause", "heard", "node", "speaks", "widest")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.cause = ""
        self.asked = 0.0
        """Monotonic time at which the last read began."""
        self.heard = 0.0
        """Monotonic time at which the engine last showed work for this request; 0: never."""
        self.speaks = False
        """Whether the first token has come."""
        self.widest = 0.0
        """Longest wait for a token after the first one, in seconds, since somebody last looked."""
        self._scope: asyncio.Timeout | None = None

    @property
    def waits(self) -> bool:
        """Whether the engine is being waited for: a client that does not read is not the engine's silence."""
        return self._scope is not None

    def cut(self, cause: str) -> None:
        """End the tie; a read in progress ends now, a later one at its beginning."""
        if not self.cause:
            self.cause = cause
            # A read that has just run out of time ends by itself, and can no longer be hurried.
            if self._scope is not None and not self._scope.expired():
                self._scope.reschedule(asyncio.get_running_loop().time())

    def took(self) -> None:
        """Note that the engine has just shown work: a token, or that the prompt is being computed. Must stay cheap."""
        self.heard = now = time.monotonic()
        if self.speaks and now - self.asked > self.widest:
            self.widest = now - self.asked

    async def hold(self, ask: Callable[[], Awaitable[T]], timeout: float) -> T:
        """Await ``ask()`` for at most ``timeout`` s. Raises Severed when cut or late."""
        if self.cause:
            raise Severed(self.cause)
        self.asked = time.monotonic()
        scope = asyncio.timeout(timeout)
        try:
            async with scope:
                self._scope = scope
                try:
                    return await ask()
                finally:
                    self._scope = None
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise Severed(self.cause or f"silent for {timeout:g} s") from error

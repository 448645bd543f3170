"""FakeEngine: a scripted engine, for the moments a real one cannot be made to hit (between last token and end)."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

# ruff: noqa: ARG002 - the arguments are the protocol's
from engines.base import Capabilities, Chunk, EngineError, Generation, Progress

HANG = "hang"
"""In a script: say nothing more, for ever."""
Step = Chunk | EngineError | str


@dataclass(slots=True)
class FakeEngine:
    """Plays one script per attempt, in turn, and keeps the orders it was given."""

    scripts: list[Sequence[Step]]
    orders: list[Generation] = field(default_factory=list)
    closed: int = 0
    """Attempts that were closed before their end."""
    kind: ClassVar[str] = "fake"

    async def healthy(self, timeout: float) -> bool:
        """Always."""
        return True

    async def capabilities(self, timeout: float) -> Capabilities:
        """Of no interest here."""
        return Capabilities("fake", "m", "same", 1_000, 4)

    async def render(self, chat: Mapping[str, Any], timeout: float) -> list[int]:
        """Three ids."""
        return [1, 2, 3]

    async def tokenize(self, text: str, timeout: float) -> list[int]:
        """Three ids."""
        return [1, 2, 3]

    async def generate(self, order: Generation, timeout: float) -> AsyncGenerator[list[Chunk], None]:
        """Play the next script."""
        self.orders.append(order)
        ended = False
        try:
            for step in self.scripts.pop(0):
                if isinstance(step, Chunk):
                    ended = step.finish is not None
                    yield [step]
                elif isinstance(step, EngineError):
                    ended = True
                    raise step
                else:
                    await asyncio.sleep(3_600)
        finally:
            self.closed += not ended

    async def micro_inference(self, timeout: float) -> int:
        """One id."""
        return 1

    async def progress(self, timeout: float) -> Progress:
        """Idle."""
        return Progress(0, 0, 0, 1.0)

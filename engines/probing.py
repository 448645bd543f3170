"""Micro-inference: one token through the real engine, and what that showed (requirements B3)."""

import asyncio
import time
from dataclasses import dataclass
from enum import Enum

from engines.base import Engine, EngineError, EngineMute, EngineRejected, EngineTimeout

_SLACK_S = 0.5
"""Time beyond the deadline for the adapter to abort a late probe in the engine."""


class Outcome(Enum):
    """What a probe showed."""

    PASSED = "passed"
    """A token generated for this probe came in time."""
    LATE = "late"
    FAILED = "failed"
    """The engine could not be reached, broke off, answered 5xx, or answered without a token."""
    NEUTRAL = "neutral"
    """A 4xx: it speaks of our request, not of the engine."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The outcome of one probe."""

    outcome: Outcome
    took_s: float
    detail: str = ""
    answered: bool = False
    """Whether the engine itself answered: then at least the way to it is right."""


async def probe(engine: Engine, deadline_s: float) -> Shown:
    """Have one token generated for this call alone within `deadline_s`; a late one is aborted in the engine."""
    began = time.monotonic()

    def shown(outcome: Outcome, detail: str = "", *, answered: bool = False) -> Shown:
        return Shown(outcome, time.monotonic() - began, detail, answered)

    try:
        async with asyncio.timeout(deadline_s + _SLACK_S):
            await engine.micro_inference(deadline_s)
    except (EngineTimeout, TimeoutError):
        return shown(Outcome.LATE, f"no token within {deadline_s:.2f} s")
    except EngineRejected as error:
        neutral = 400 <= error.status < 500
        return shown(Outcome.NEUTRAL if neutral else Outcome.FAILED, f"HTTP {error.status}", answered=True)
    except EngineMute as error:
        return shown(Outcome.FAILED, str(error), answered=True)
    except EngineError as error:
        return shown(Outcome.FAILED, f"{type(error).__name__}: {error}"[:200])
    return shown(Outcome.PASSED, answered=True)

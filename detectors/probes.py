"""Micro-inference: one token through the real engine (requirements B3).

Runs a probe and says what it showed; judges nothing.
"""

import asyncio
import time

import aiohttp

from detectors.evidence import ProbeFailed, ProbeLate, ProbeNeutral, ProbePassed
from engines import connect
from engines.base import EngineError, EngineMute, EngineRejected, EngineTimeout

_SLACK_S = 0.5
"""Time beyond the deadline for the adapter to abort a late probe in the engine."""


async def probe(
    kind: str, url: str, session: aiohttp.ClientSession, deadline_s: float
) -> ProbePassed | ProbeLate | ProbeFailed | ProbeNeutral:
    """Have one token generated for this call alone within `deadline_s`."""
    try:
        engine = connect(kind, url, session)
    except ValueError as error:
        return ProbeNeutral(str(error))
    began = time.monotonic()
    try:
        async with asyncio.timeout(deadline_s + _SLACK_S):
            await engine.micro_inference(deadline_s)
    except (EngineTimeout, TimeoutError):
        return ProbeLate(f"no token within {deadline_s:.2f} s")
    except EngineRejected as error:
        if 400 <= error.status < 500:
            return ProbeNeutral(f"HTTP {error.status}")
        return ProbeFailed(f"HTTP {error.status}", answered=True)
    except EngineMute as error:
        return ProbeFailed(str(error), answered=True)
    except EngineError as error:
        return ProbeFailed(f"{type(error).__name__}: {error}"[:200])
    return ProbePassed(time.monotonic() - began)

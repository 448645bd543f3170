"""A reply's timer, at the moments a clock would hardly ever hit."""

import asyncio
from typing import Any

from api.context import Context
from api.replies import StreamReply
from tests.unit.api.scripted import make_stream


async def test_a_pause_may_come_in_the_very_turn_a_ping_falls_due(context: Context) -> None:
    """Found with a hundred streams silent at once: the timer that has run out cannot be set anew (case G1-07)."""
    # Given
    stream = make_stream(context)
    reply = StreamReply(context, stream, stream.ask)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    reply._send, reply.started = send, True

    async def run_out() -> "asyncio.Task[None]":
        try:
            async with asyncio.timeout(0) as timer:
                reply._timer = timer
                # Queued behind the timer's own callback
                pausing = asyncio.create_task(reply.pause())
                await asyncio.sleep(60)
        except TimeoutError:
            return pausing
        raise AssertionError("the time did not run out")

    # When
    await (await run_out())
    # Then
    assert [message["body"] for message in sent] == [b": ping\n"]

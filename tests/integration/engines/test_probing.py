"""Micro-inference through a real engine: serving, stuck, refusing, gone."""

import asyncio
from pathlib import Path

import pytest

from engines import connect
from engines.llamacpp import open_session
from engines.probing import Outcome, probe
from tests.rigs.engine import free_port, running_engine


async def test_a_probe_tells_serving_stuck_and_gone_apart(tmp_path: Path) -> None:
    """One engine through its life."""
    async with running_engine(tmp_path, slots=1, context=256) as running, open_session() as session:
        engine = connect("llamacpp", running.url, session)
        assert (await probe(engine, 10.0)).outcome is Outcome.PASSED
        running.stop()
        assert (await probe(engine, 0.5)).outcome is Outcome.LATE
        running.cont()
        running.kill9()
        running.process.wait(10)
        gone = await probe(engine, 0.5)
        assert (gone.outcome, gone.answered) == (Outcome.FAILED, False)


@pytest.mark.parametrize(("status", "outcome"), [(400, Outcome.NEUTRAL), (429, Outcome.NEUTRAL), (500, Outcome.FAILED)])
async def test_a_refusal_is_neutral_an_engines_error_is_not(status: int, outcome: Outcome) -> None:
    """4xx speaks of our request, 5xx of the engine, which was reached: it counts from the first probe on."""

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    port = free_port()
    server = await asyncio.start_server(refuse, "127.0.0.1", port)
    async with server, open_session() as session:
        shown = await probe(connect("llamacpp", f"http://127.0.0.1:{port}", session), 2.0)
    assert (shown.outcome, shown.answered) == (outcome, True)

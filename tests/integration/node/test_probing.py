"""Probes run by the agent beside its engine, for whoever asks."""

import asyncio
import os
import signal
from pathlib import Path

from protocol import unbroken_pb2 as pb
from tests.rigs.agent import running_agent, until


async def test_a_frozen_engine_is_late_for_everybody_who_asks_and_the_report_shows_it(
    redis_url: str, tmp_path: Path
) -> None:
    """One probe is under way at most, however many sentinels want one; it is seen in every report meanwhile."""
    async with running_agent(redis_url, tmp_path) as agent:
        serving = await agent.serving()
        stub = await agent.stub()
        first = await stub.Probe(pb.ProbeRequest(epoch=serving.epoch, deadline_ms=10_000), timeout=20)
        assert first.outcome == pb.PROBE_OUTCOME_PASSED
        assert (await agent.status()).probe_ms == 0
        os.kill(serving.engine_pid, signal.SIGSTOP)
        asked = [
            asyncio.ensure_future(stub.Probe(pb.ProbeRequest(epoch=serving.epoch, deadline_ms=ms), timeout=20))
            for ms in (1_500, 60_000)
        ]

        async def seen() -> pb.NodeReport | None:
            report = await agent.status()
            return report if report.probe_ms and report.halted else None

        earlier = await until(seen, 10.0)
        later = await until(seen, 10.0)
        assert later.at_ms - earlier.at_ms >= later.probe_ms - earlier.probe_ms - 2 >= -2
        outcomes = {reply.outcome for reply in await asyncio.gather(*asked)}
        assert outcomes == {pb.PROBE_OUTCOME_LATE}


async def test_a_probe_of_another_epoch_says_nothing(redis_url: str, tmp_path: Path) -> None:
    """The engine it was meant for is no more, or not there yet."""
    async with running_agent(redis_url, tmp_path) as agent:
        serving = await agent.serving()
        stub = await agent.stub()
        reply = await stub.Probe(pb.ProbeRequest(epoch=serving.epoch + 1, deadline_ms=1_000), timeout=20)
        assert reply.outcome == pb.PROBE_OUTCOME_NEUTRAL

"""Kills the serving engine again and again and measures what the client sees, and where the time goes.

Each kill is SIGKILL in mid-answer on a whole embedded stack; every answer is compared token by token.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks.report import spread
from cli.answers import Answer, stream_answer
from cli.compare import Difference, compare
from cli.demo import PROMPTS
from cli.faults import KillEngine
from cli.operations import Operations, Target, operations
from cli.stack import Stack, free_port
from cli.watching import detected_ms, wait_for_job, wait_for_nodes
from recovery.auth import read_token
from recovery.config import Settings, load

MAX_TOKENS = 96
KILL_AFTER_TOKENS = 24
STREAMS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's options."""
    parser.add_argument("--kills", type=int, default=50, help="how many engines to kill (default 50)")


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the measurement and return its figures, times in ms."""
    with tempfile.TemporaryDirectory(prefix="unbroken-bench-") as folder:
        settings = _settings(Path(folder))
        with (Path(folder) / "stack.log").open("w", encoding="utf-8") as log:
            stack = Stack(settings, lambda name, line: print(f"{name} | {line}", file=log, flush=True))
            try:
                addresses = await stack.start()
                target = Target(addresses.gateway, addresses.operator_key)
                client = AsyncOpenAI(base_url=f"{addresses.gateway}/v1", api_key=addresses.inference_key, max_retries=0)
                async with operations(target) as api, client:
                    return await _measure(options.kills, settings, stack, api, client)
            finally:
                await stack.stop()


async def _measure(
    kills: int, settings: Settings, stack: Stack, api: Operations, client: AsyncOpenAI
) -> dict[str, Any]:
    assert stack.addresses is not None  # noqa: S101 - for the type checker: start() has returned
    model, token = settings.node.model_name, read_token(stack.state_dir / "agent_token")
    await wait_for_nodes(api, 2)
    references = [
        await stream_answer(client, Answer(prompt), model=model, max_tokens=MAX_TOKENS) for prompt in PROMPTS[:STREAMS]
    ]
    gaps: list[float] = []
    calm: list[float] = []
    detections: list[float] = []
    orchestrations: list[float] = []
    returns: list[float] = []
    difference, cut_streams = Difference(), 0
    for number in range(kills):
        await wait_for_nodes(api, 2)
        answers = [Answer(prompt) for prompt in PROMPTS[:STREAMS]]
        killed = await KillEngine(answers[number % STREAMS], KILL_AFTER_TOKENS, api, token).beside(
            [stream_answer(client, answer, model=model, max_tokens=MAX_TOKENS) for answer in answers]
        )
        job = await wait_for_job(api, answers[number % STREAMS].node, killed.wall_ms)
        died_ms = await detected_ms(stack.addresses.redis, job["node"], job["epoch"])
        steps = {step["name"]: step for step in job["steps"]}
        detections.append(died_ms - killed.wall_ms)
        orchestrations.append(steps["requeue"]["ended_ms"] - died_ms)
        returns.append(job["ended_ms"] - killed.wall_ms)
        for reference, answer in zip(references, answers, strict=True):
            difference += compare(reference.ids, answer.ids)
            before = [b - a for a, b in zip(answer.arrivals, answer.arrivals[1:], strict=False) if b < killed.at]
            calm += [1_000 * pause for pause in before]
            if answer.node == job["node"]:
                cut_streams += 1
                gaps.append(1_000 * answer.longest_gap(killed.at))
        print(
            f"{number + 1}/{kills} {time.strftime('%H:%M:%S')} gap {gaps[-1]:.0f} ms, detect {detections[-1]:.0f} ms, "
            f"orchestrate {orchestrations[-1]:.0f} ms, back {returns[-1]:.0f} ms, job {job['state']}",
            file=sys.stderr,
            flush=True,
        )
    return {
        "kills": kills,
        "streams_cut": cut_streams,
        "lost": difference.lost,
        "duplicated": difference.duplicated,
        "mismatched": difference.mismatched,
        "gap_ms": spread(gaps),
        "undisturbed_gap_ms": spread(calm),
        "detect_ms": spread(detections),
        "orchestrate_ms": spread(orchestrations),
        "node_back_ms": spread(returns),
        "meaning": {
            "gap_ms": "longest pause between two pieces of text after the kill, seen by the client",
            "undisturbed_gap_ms": "the same streams' pauses before the kill, in the same run",
            "detect_ms": "SIGKILL → the sentinel's verdict (wall clock, whole ms)",
            "orchestrate_ms": "verdict → all cut requests reassigned by the job's requeue step",
            "node_back_ms": "SIGKILL → node restarted, warmed up and on probation",
        },
    }


def _settings(folder: Path) -> Settings:
    settings = load()
    update = {
        "stack": settings.stack.model_copy(update={"state_dir": folder / "state", "flower_port": free_port()}),
        "gateway": settings.gateway.model_copy(update={"port": free_port()}),
        # Every kill needs two trusted nodes: probation is cut short and the restart budget lifted.
        "probation": settings.probation.model_copy(update={"hold_s": 0.2, "step": 1.0, "step_interval_s": 0.1}),
        "limits": settings.limits.model_copy(update={"restarts": 1_000}),
    }
    return settings.model_copy(update=update)

"""Kills the serving engine again and again and measures what the client sees, and where the time goes.

Each kill is SIGKILL in mid-answer on a whole embedded stack; every answer is compared token by token.
"""

import argparse
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from benchmarks.report import spread
from cli.answers import Answer, stream_answer
from cli.compare import Difference, compare
from cli.demo import PROMPTS
from cli.faults import KillEngine, fault_settings
from cli.operations import Operations, Target, operations
from cli.stack import Stack
from cli.watching import detected_ms, wait_for_job, wait_for_nodes
from recovery.auth import read_token

MAX_TOKENS = 96
KILL_AFTER_TOKENS = 24
WAIT = "unbroken_resume_wait_seconds"
KINDS = ("resident", "cold")
MEANING = {
    "resident": "the peer has computed the same answer before: its prefix cache holds all the resume needs",
    "cold": "the peer has never seen the prompt: it computes prompt and delivered tokens anew",
    "gap_ms": "longest pause between two pieces of text after the kill, as the client saw it",
    "wait_ms": "the part of gap_ms before the next attempt was sent; the rest is the peer's prefill and decode",
    "gap_over_calm": "gap_ms over the median undisturbed pause of the same run",
    "undisturbed_ms": "pauses of the same streams before the kill, in the same run",
    "detect_ms": "SIGKILL to the sentinel's verdict (wall clock, whole ms)",
    "orchestrate_ms": "verdict to all cut requests reassigned by the job's requeue step",
    "node_back_ms": "SIGKILL to node restarted, warmed up and on probation",
}


@dataclass
class Figures:
    """What was measured so far, in ms, by kind of kill where the kind matters."""

    gaps: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    calm: list[float] = field(default_factory=list)
    detections: list[float] = field(default_factory=list)
    orchestrations: list[float] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    difference: Difference = field(default_factory=Difference)
    streams: int = 0
    cut: int = 0

    def report(self, kills: int) -> dict[str, Any]:
        """Return the figures as JSON."""
        calm = spread(self.calm)
        return {
            "kills": kills,
            "streams": self.streams,
            "streams_cut": self.cut,
            "lost": self.difference.lost,
            "duplicated": self.difference.duplicated,
            "mismatched": self.difference.mismatched,
            **{
                kind: {
                    "gap_ms": spread(self.gaps[kind]),
                    "wait_ms": spread(self.waits[kind]),
                    "gap_over_calm": spread([gap / calm["p50"] for gap in self.gaps[kind]]),
                }
                for kind in KINDS
                if self.gaps[kind]
            },
            "undisturbed_ms": calm,
            "detect_ms": spread(self.detections),
            "orchestrate_ms": spread(self.orchestrations),
            "node_back_ms": spread(self.returns),
            "meaning": MEANING,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this measurement's options."""
    parser.add_argument("--kills", type=int, default=50, help="how many engines to kill (default 50)")


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the measurement and return its figures, times in ms."""
    with tempfile.TemporaryDirectory(prefix="unbroken-bench-") as folder:
        settings = fault_settings(Path(folder))
        with (Path(folder) / "stack.log").open("w", encoding="utf-8") as log:
            stack = Stack(settings, lambda name, line: print(f"{name} | {line}", file=log, flush=True))
            try:
                addresses = await stack.start()
                client = AsyncOpenAI(base_url=f"{addresses.gateway}/v1", api_key=addresses.inference_key, max_retries=0)
                async with operations(Target(addresses.gateway, addresses.operator_key)) as api, client:
                    bench = _Bench(stack, api, client)
                    for number in range(options.kills):
                        await bench.kill_once(number, KINDS[number % len(KINDS)])
                    return bench.figures.report(options.kills)
            finally:
                await stack.stop()


class _Bench:
    """One kill after another on a running stack."""

    def __init__(self, stack: Stack, api: Operations, client: AsyncOpenAI) -> None:
        self.figures = Figures()
        self._stack = stack
        self._api = api
        self._client = client
        self._token = read_token(stack.state_dir / "agent_token")

    async def kill_once(self, number: int, kind: str) -> None:
        """Stream two answers, kill the engine of one of them, and keep what was seen."""
        assert self._stack.addresses is not None  # noqa: S101 - for the type checker: start() has returned
        nodes = await wait_for_nodes(self._api, 2)
        # The chats differ from their first tokens on, or llama.cpp gives both the same slot and its cache.
        answers = [
            Answer(prompt, f"{number}{name}. You answer questions.")
            for name, prompt in zip("ab", PROMPTS, strict=False)
        ]
        if kind == "resident":
            for node in nodes:
                for answer in answers:
                    await self._compute(node["engine_url"], answer)
        target = answers[number % 2]
        before = await self._waited()
        killed = await KillEngine(target, KILL_AFTER_TOKENS, self._api, self._token).beside(
            [self._stream(answer) for answer in answers]
        )
        after = await self._waited()
        job = await wait_for_job(self._api, target.node, killed.wall_ms)
        died_ms = await detected_ms(self._stack.addresses.redis, job["node"], job["epoch"])
        requeue = next(step for step in job["steps"] if step["name"] == "requeue")
        figures = self.figures
        figures.detections.append(died_ms - killed.wall_ms)
        figures.orchestrations.append(requeue["ended_ms"] - died_ms)
        figures.returns.append(job["ended_ms"] - killed.wall_ms)
        figures.waits[kind].append(1_000 * (after[0] - before[0]) / (after[1] - before[1]))
        for answer in answers:
            figures.streams += 1
            figures.difference += compare((await self._stream(Answer(answer.prompt, answer.system))).ids, answer.ids)
            pauses = zip(answer.arrivals, answer.arrivals[1:], strict=False)
            figures.calm += [1_000 * (end - begin) for begin, end in pauses if end < killed.at]
            if answer.node == job["node"]:
                figures.cut += 1
                figures.gaps[kind].append(1_000 * answer.longest_gap(killed.at))
        print(
            f"{number + 1} {kind}: gap {figures.gaps[kind][-1]:.0f} ms, of which {figures.waits[kind][-1]:.0f} ms "
            f"before the next attempt was sent; job {job['state']}, node back after {figures.returns[-1]:.0f} ms",
            file=sys.stderr,
            flush=True,
        )

    async def _stream(self, answer: Answer) -> Answer:
        return await stream_answer(
            self._client, answer, model=self._stack.settings.node.model_name, max_tokens=MAX_TOKENS
        )

    async def _compute(self, engine_url: str, answer: Answer) -> None:
        """Have one engine compute an answer beforehand, past the gateway, so that its prefix cache holds it."""
        async with AsyncOpenAI(base_url=f"{engine_url}/v1", api_key="none", max_retries=0) as engine:
            await engine.chat.completions.create(
                model=self._stack.settings.node.model_name,
                messages=answer.messages,
                max_tokens=MAX_TOKENS,
                temperature=0,
            )

    async def _waited(self) -> tuple[float, float]:
        return await self._api.metric(f"{WAIT}_sum"), await self._api.metric(f"{WAIT}_count")

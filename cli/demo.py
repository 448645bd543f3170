"""The demo's story: start, stream, kill, go on, compare token by token, bring the node back.

What it measures is what a client sees; its exit code is 0 only when every stream was whole.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAIError
from rich.console import Console

from cli.answers import Answer, stream_answer
from cli.compare import Difference, compare
from cli.faults import Killed, KillEngine
from cli.operations import Operations, Target, operations
from cli.show import print_job
from cli.stack import Addresses, Stack, free_port, is_free, wait_for_end
from cli.watching import detected_ms, wait_for_job, wait_for_nodes
from recovery.auth import read_token
from recovery.config import Settings
from recovery.errors import UnbrokenError

PROMPTS = (
    "How does a volcano erupt?",
    "What is photosynthesis? Explain it step by step.",
    "What is gravity? Explain it in detail.",
)
"""The first is shown; the others run beside it."""
SYSTEM = "You explain things."
MAX_TOKENS = 200
KILL_AFTER_TOKENS = 32
ANSWER_TIMEOUT_S = 120.0


class DemoFailed(UnbrokenError):
    """The demo could not show what it is for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured."""

    difference: Difference
    streams: int
    cut: int
    """Streams that ran on the killed engine."""
    gap_ms: float
    detect_ms: float
    killed: Killed
    node: str
    node_state: str
    job: dict[str, Any]
    finished: bool
    """Every stream ended with the reference's finish reason."""

    @property
    def good(self) -> bool:
        """Whether everything was as promised."""
        return (
            self.difference.none and self.finished and self.cut > 0
            and self.job["state"] == "succeeded" and self.node_state in ("PROBATION", "ALIVE")
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """Return the figures for `--json`."""
        return {
            "streams": self.streams,
            "streams_on_killed_engine": self.cut,
            "lost": self.difference.lost,
            "duplicated": self.difference.duplicated,
            "mismatched": self.difference.mismatched,
            "gap_ms": round(self.gap_ms, 1),
            "detect_ms": round(self.detect_ms, 1),
            "killed": {"node": self.node, "pid": self.killed.pid},
            "node_state": self.node_state,
            "job": {
                "id": self.job["id"],
                "state": self.job["state"],
                "steps": {s["name"]: s["ended_ms"] - s["began_ms"] for s in self.job["steps"] if s["ended_ms"]},
            },
        }


class Demo:
    """Runs the demo once; `run` is a process body (settings, stop) → exit code."""

    def __init__(self, *, once: bool, json_file: Path | None) -> None:
        self._once = once
        self._json_file = json_file
        self._console = Console(highlight=False)

    async def run(self, settings: Settings, stop: asyncio.Event) -> int:
        """Tell the whole story. Raises DemoFailed, SettingsError, StackFailed."""
        settings = _demo_settings(settings)
        logs = _LogFiles(settings.stack.state_dir / "logs")
        stack = Stack(settings, logs.write, fresh=True)
        story = asyncio.create_task(self._story(stack, settings, logs))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({story, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not story.done():
                return 130
            good = story.result()
            if not self._once:
                self._say("\n[dim]The stack keeps running; Ctrl-C stops it.[/]")
                await wait_for_end(stack, stop)
            return 0 if good else 1
        finally:
            for task in (story, stopped):
                task.cancel()
            await asyncio.wait({story, stopped}, timeout=5)
            await stack.stop()
            logs.close()

    async def _story(self, stack: Stack, settings: Settings, logs: "_LogFiles") -> bool:
        began = time.monotonic()
        self._say(
            "[bold]Starting[/] Redis, two nodes with real engines, sentinel, dispatcher, workers, gateway, Flower …"
        )
        try:
            addresses = await stack.start()
        except UnbrokenError as error:
            raise DemoFailed(f"{error} (logs: {logs.folder})") from error
        target = Target(addresses.gateway, addresses.operator_key)
        client = AsyncOpenAI(
            base_url=f"{addresses.gateway}/v1", api_key=addresses.inference_key, max_retries=0, timeout=ANSWER_TIMEOUT_S
        )
        async with operations(target) as api, client:
            nodes = await wait_for_nodes(api, len(settings.stack.nodes))
            self._say(f"[green]up[/] after {time.monotonic() - began:.1f} s: " + ", ".join(
                f"node {node['id']} at {node['engine_url']}" for node in nodes
            ))  # fmt: skip
            outcome = await self._kill_in_mid_answer(stack, settings, addresses, api, client)
        self._report(outcome, addresses, settings)
        return outcome.good

    async def _kill_in_mid_answer(
        self, stack: Stack, settings: Settings, addresses: Addresses, api: Operations, client: AsyncOpenAI
    ) -> Outcome:
        model = settings.node.model_name
        self._say(f"\n[bold]Reference[/]: {len(PROMPTS)} answers, undisturbed …")
        references = await asyncio.gather(
            *(stream_answer(client, Answer(prompt, SYSTEM), model=model, max_tokens=MAX_TOKENS) for prompt in PROMPTS)
        )
        self._say(f"\n[bold]Again[/], and this time the engine dies. [dim]> {PROMPTS[0]}[/]\n")
        answers = [Answer(prompt, SYSTEM) for prompt in PROMPTS]
        show = _Show(answers[0], self._console)
        killer = KillEngine(answers[0], KILL_AFTER_TOKENS, api, read_token(stack.state_dir / "agent_token"))
        show.killer = killer
        try:
            killed = await killer.beside(
                [stream_answer(client, answer, model=model, max_tokens=MAX_TOKENS) for answer in answers]
            )
        except OpenAIError as error:
            raise DemoFailed(f"a stream was lost: {error}") from error
        self._console.print("\n")
        cut = [answer for answer in answers if answer.node == answers[0].node]
        difference = sum(
            (compare(reference.ids, answer.ids) for reference, answer in zip(references, answers, strict=True)),
            Difference(),
        )
        job = await wait_for_job(api, answers[0].node, killed.wall_ms)
        node = await api.get(f"/v1/nodes/{answers[0].node}")
        return Outcome(
            difference=difference,
            streams=len(answers),
            cut=len(cut),
            gap_ms=1_000 * max(answer.longest_gap(killed.at) for answer in cut),
            detect_ms=await detected_ms(addresses.redis, job["node"], job["epoch"]) - killed.wall_ms,
            killed=killed,
            node=job["node"],
            node_state=node["state"],
            job=job,
            finished=all(
                reference.finish_reason == answer.finish_reason and reference.text == answer.text and answer.ids
                for reference, answer in zip(references, answers, strict=True)
            ),
        )

    def _report(self, outcome: Outcome, addresses: Addresses, settings: Settings) -> None:
        difference = outcome.difference
        mark = "[green]✔[/]" if difference.none and outcome.finished else "[red]✘[/]"
        self._say(
            f"{mark} {outcome.streams} streams, {outcome.cut} of them on the killed engine: "
            f"{difference.lost} tokens lost, {difference.duplicated} duplicated, {difference.mismatched} mismatched"
        )
        self._say(
            f"  pause seen by the client [bold]{outcome.gap_ms:.0f} ms[/], "
            f"death noticed after {outcome.detect_ms:.0f} ms\n"
        )
        print_job(self._console, outcome.job)
        self._say(
            f"node {outcome.node} is back with a new engine: [bold]{outcome.node_state}[/] "
            f"[dim](trusted again after {settings.probation.hold_s:g} s of clean probes, in steps of "
            f"{settings.probation.step:.0%})[/]"
        )
        self._say(
            f"\n  OpenAI API   {addresses.gateway}/v1      key {addresses.inference_key}\n"
            f"  operations   {addresses.gateway}/docs    key {addresses.operator_key}\n"
            f"  Flower       {addresses.flower}"
        )
        if self._json_file is not None:
            self._json_file.write_text(json.dumps(outcome.as_json(), indent=2) + "\n", encoding="utf-8")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


class _Show:
    """Prints an answer as it comes: white before its engine is killed, green after."""

    def __init__(self, answer: Answer, console: Console) -> None:
        answer.on_text = self._print
        self._answer = answer
        self._console = console
        self._marked = False
        self.killer: KillEngine | None = None

    def _print(self, text: str) -> None:
        killed = self.killer.done if self.killer else None
        if killed and not self._marked:
            self._marked = True
            mark = f" ✂ kill -9 {killed.pid} (the engine of node {self._answer.node}) "
            self._console.print(mark, end="", style="bold white on red", soft_wrap=True)
        self._console.print(text, end="", style="green" if killed else "white", soft_wrap=True, markup=False)


class _LogFiles:
    """Keeps each process's output in a file of its own: the terminal belongs to the story."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}

    def write(self, name: str, line: str) -> None:
        if name not in self._files:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._files[name] = (self.folder / f"{name}.log").open("w", encoding="utf-8", buffering=1)
        self._files[name].write(line + "\n")

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _demo_settings(settings: Settings) -> Settings:
    """A state directory of its own, and free ports where the usual ones are taken."""
    state_dir = settings.stack.state_dir / "demo"
    gateway, stack = settings.gateway, settings.stack
    if not is_free(gateway.host, gateway.port):
        gateway = gateway.model_copy(update={"port": free_port()})
    if not is_free(stack.flower_host, stack.flower_port):
        stack = stack.model_copy(update={"flower_port": free_port()})
    stack = stack.model_copy(update={"state_dir": state_dir})
    return settings.model_copy(update={"gateway": gateway, "stack": stack})

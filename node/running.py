"""The engine process a node has: its record, adapter, progress, and the wait until it serves."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from engines.base import Capabilities, Engine, EngineError, Generation
from node import processes
from node.deathwatch import DeathWatch, exit_text
from node.effort import EffortLog
from node.essential import essential, uses_gpu
from node.launcher import Launched, StartFailed
from node.processes import Identity, listens
from node.progress import ProgressLog
from node.state import Record

_ASK_S = 5.0
_HEALTH_S = 1.0
_POLL_S = 0.05
_EXIT_S = 2.0
_ADOPT_TRIES = 3
_WARM_STEP_S = 15.0
_WARM_PROBES = 3
_WARM_TOKENS = 8

log = structlog.get_logger()


@dataclass(slots=True)
class Running:
    """The engine process this node has, or had until it is reclaimed."""

    launched: Launched
    adapter: Engine
    progress: ProgressLog = field(default_factory=lambda: ProgressLog(time.monotonic()))
    effort: EffortLog = field(default_factory=lambda: EffortLog(time.monotonic()))
    watch: DeathWatch | None = None
    capabilities: Capabilities | None = None
    dead: str = ""
    """Evidence of its death."""
    ending: bool = False
    """We are killing it: its death is no news."""
    adopted: bool = False
    """It served an earlier agent of this node."""
    proof: tuple[int, int] | None = None
    """Tokens and ms of its first generations."""
    on_cpu: bool = False
    """The model runs on the CPU, as far as its processes show."""

    @property
    def record(self) -> Record:
        """The process as launched."""
        return self.launched.record

    @property
    def serving(self) -> bool:
        """Whether it has become ready and neither died nor is being ended."""
        return self.capabilities is not None and not self.dead and not self.ending

    @property
    def proven(self) -> bool:
        """Whether it has generated something."""
        return self.adopted or self.proof is not None

    async def ask_capabilities(self) -> Capabilities | None:
        """Return what the engine is once it is healthy; None while it loads or does not answer."""
        try:
            if await self.adapter.healthy(_HEALTH_S) and await self._answers_itself():
                return await self.adapter.capabilities(_ASK_S)
        except EngineError as error:
            log.debug("engine.capabilities_failed", pid=self.record.pid, error=str(error))
        return None

    def begin_watch(self, on_death: Callable[[str], None]) -> None:
        """Watch the main process; once it is ready, `cover` adds the others."""
        lifelines = Path(self.record.lifeline) if self.record.lifeline else None
        self.watch = DeathWatch(self.record.identity, lifelines, self.launched.child, on_death)

    async def answers(self) -> bool:
        """Whether an engine launched by an earlier agent lives and still answers; then it is known and may serve."""
        for _ in range(_ADOPT_TRIES):  # busy engines answer late
            if not processes.alive(self.record.identity) or processes.stopped(self.record.identity):
                break
            self.capabilities = await self.ask_capabilities()
            if self.capabilities is not None:
                break
        return self.capabilities is not None

    async def until_ready(self, limit_s: float, said: Callable[[], str], check: Callable[[], None]) -> None:
        """Wait until it serves. Raises StartFailed with what the engine `said`, and whatever `check` raises."""
        began = time.monotonic()
        found = None
        members: set[Identity] = set()
        while found is None:
            if time.monotonic() - began > limit_s:
                raise StartFailed(f"the engine was not ready within probe.start_deadline_s = {limit_s:g} s: {said()}")
            found = await self.ask_capabilities()
            if found is not None:
                members = await asyncio.to_thread(self.find_members)
            # Checked after the question: a fence or a death during it must not pass unseen.
            check()
            if self.dead:
                raise StartFailed(f"the engine ended with {await self._exit()}: {said()}")
            if found is None:
                await asyncio.sleep(_POLL_S)
        self.capabilities = found
        self.cover(members)
        self.progress = ProgressLog(time.monotonic())

    def find_members(self) -> set[Identity]:
        """Find what the engine, ready by now, consists of, and where it computes. Reads /proc; run it in a thread."""
        self.on_cpu = not uses_gpu(self.record.identity)
        return essential(self.record.identity)

    def cover(self, members: set[Identity]) -> None:
        """Have the death of any of these processes count as the engine's."""
        if self.watch is not None:
            self.watch.cover(members)
        log.info("engine.members", pid=self.record.pid, pids=sorted(member.pid for member in members))

    async def prove(self) -> tuple[int, int]:
        """Generate a little, once; return tokens and ms. Raises EngineError, TimeoutError."""
        if self.proof is None:
            began = time.monotonic()
            tokens = await self._generate_a_little()
            self.proof = (tokens, round((time.monotonic() - began) * 1_000))
        return self.proof

    async def _generate_a_little(self) -> int:
        tokens = 0
        for _ in range(_WARM_PROBES):
            await self.adapter.micro_inference(_WARM_STEP_S)
            tokens += 1
        prompt = await self.adapter.tokenize("The sun rises in the", _WARM_STEP_S)
        order = Generation(prompt, _WARM_TOKENS, sampling={"temperature": 0}, request_id="warm-up")
        async with asyncio.timeout(_WARM_STEP_S):
            async for chunks in self.adapter.generate(order, _ASK_S):
                tokens += sum(len(chunk.ids) for chunk in chunks)
        return tokens

    async def _answers_itself(self) -> bool:
        """Whether the address is this process's: another engine may have taken the port."""
        port = urlsplit(self.record.url).port or 0
        return await asyncio.to_thread(listens, self.record.identity, port)

    async def _exit(self) -> str:
        child = self.launched.child
        end = time.monotonic() + _EXIT_S
        while child is not None and child.poll() is None and time.monotonic() < end:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
        return exit_text(child) or self.dead

"""The load under which nothing may die: more busy processes than cores, and requests without pause."""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

from openai import APIStatusError, AsyncOpenAI, OpenAIError

from cli.answers import Answer, stream_answer
from cli.demo import PROMPTS
from recovery.stopping import stop_tasks

_MAX_TOKENS = 96
_BREATH_S = 0.5
"""Pause after an error: a gateway that refuses must not be hammered."""
_END_S = 5
# A burner ends with its parent, and by itself after an hour.
_BURN = (
    "import os, sys, time\n"
    "parent, end = int(sys.argv[1]), time.monotonic() + 3600\n"
    "while os.getppid() == parent and time.monotonic() < end:\n"
    "    for _ in range(100000): pass\n"
)


class Burners:
    """Processes that do nothing but compute, at normal niceness."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def count(self) -> int:
        """How many run."""
        return len(self._running)

    def start(self, count: int) -> None:
        """Start some."""
        argv = [sys.executable, "-c", _BURN, str(os.getpid())]
        self._running += [subprocess.Popen(argv, stdin=subprocess.DEVNULL) for _ in range(count)]

    def stop(self) -> None:
        """End them all."""
        for burner in self._running:
            burner.kill()
        for burner in self._running:
            burner.wait(_END_S)
        self._running.clear()


@dataclass(slots=True)
class Served:
    """What the clients got."""

    requests: int = 0
    whole: int = 0
    tokens: int = 0
    longest_pause_s: float = 0.0
    """Between two pieces of text of one answer."""
    errors: Counter[str] = field(default_factory=Counter)


class Requests:
    """Keeps some requests running."""

    def __init__(self, client: AsyncOpenAI, model: str) -> None:
        self.served = Served()
        self._client = client
        self._model = model
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, count: int) -> None:
        """Keep `count` requests running from now on."""
        self._tasks += [asyncio.create_task(self._keep_asking(number)) for number in range(count)]

    async def stop(self) -> None:
        """End them where they are."""
        await stop_tasks(*self._tasks)

    async def _keep_asking(self, number: int) -> None:
        while True:
            self.served.requests += 1
            prompt = PROMPTS[(number + self.served.requests) % len(PROMPTS)]
            await self._ask(Answer(prompt, f"{number}.{self.served.requests} You explain things."))

    async def _ask(self, answer: Answer) -> None:
        served, last = self.served, time.monotonic()

        def saw(_text: str) -> None:
            nonlocal last
            served.tokens += 1
            now = time.monotonic()
            if len(answer.arrivals) > 1:
                served.longest_pause_s = max(served.longest_pause_s, now - last)
            last = now

        answer.on_text = saw
        try:
            await stream_answer(self._client, answer, model=self._model, max_tokens=_MAX_TOKENS)
        except OpenAIError as error:
            code = f"HTTP {error.status_code}" if isinstance(error, APIStatusError) else type(error).__name__
            served.errors[str(getattr(error, "code", None) or code)] += 1
            await asyncio.sleep(_BREATH_S)
        else:
            served.whole += answer.finish_reason in ("stop", "length")

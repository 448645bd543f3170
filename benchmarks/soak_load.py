"""The soak's clients: chat and completion requests of every kind, each compared with its undisturbed answer."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from openai import APIError, AsyncOpenAI

from cli.compare import Difference, compare
from cli.demo import PROMPTS

Kind = Literal["chat", "sampled", "completion", "whole"]
_SHARES: tuple[tuple[Kind, float], ...] = (("chat", 0.5), ("sampled", 0.2), ("completion", 0.15), ("whole", 0.15))
_MAX_TOKENS = 96
_SEED = 4_711
_FOUND_WITHIN_S = 6.0
_BREATH_S = 0.2
"""Pause after an error: a gateway that refuses must not be hammered."""


@dataclass(slots=True)
class Asked:
    """One request and what came of it."""

    kind: Kind
    prompt: str
    began: float = field(default_factory=time.time)
    ended: float = 0.0
    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    request: str = ""
    error: str = ""
    gap: float = 0.0
    left: bool = False
    """Whether its client went away on purpose."""
    difference: Difference = field(default_factory=Difference)
    whole: bool = True

    def describe(self, deaths: list[float]) -> str:
        """Say what was wrong, and how many engines died meanwhile."""
        what = self.error or f"{self.difference}, finish {self.finish}"
        return (
            f"{self.request} {self.kind} {self.began:.3f}-{self.ended:.3f}: {what}, {len(self.ids)} tokens, "
            f"{self._hit(deaths)} deaths of nodes meanwhile"
        )

    def spent(self, deaths: list[float], retries: int) -> bool:
        """Whether it ended because more nodes died under it than a request may be cut (requirements C3)."""
        return self.error == "retries_exhausted" and self._hit(deaths) > retries

    def _hit(self, deaths: list[float]) -> int:
        """Count the deaths it may have noticed; one is found late while the sentinel or Redis is away as well."""
        return sum(self.began - _FOUND_WITHIN_S <= at <= self.ended for at in deaths)


class Load:
    """Keeps requests running and remembers how each ended."""

    def __init__(self, client: AsyncOpenAI, model: str, rng: random.Random) -> None:
        self._client = client
        self._model = model
        self._rng = rng
        self._stopping = False
        self._expected: dict[tuple[Kind, str], Asked] = {}
        self.done: list[Asked] = []
        self.running: dict[int, tuple[asyncio.Task[None], Asked]] = {}

    @property
    def difference(self) -> Difference:
        """The differences of all answers that ended without an error, added up."""
        return sum((one.difference for one in self.done if not one.error), Difference())

    async def learn(self) -> None:
        """Ask everything once, undisturbed."""
        for kind, _ in _SHARES:
            for prompt in PROMPTS:
                asked = Asked(kind, prompt)
                await self._ask(asked)
                if not asked.ids:
                    raise RuntimeError(f"the reference for {kind} has no token ids: nothing would be compared")
                self._expected[kind, prompt] = asked

    def stop(self) -> None:
        """Let running requests end and begin none."""
        self._stopping = True

    async def keep_asking(self, number: int) -> None:
        """Ask one request after another."""
        kinds, shares = zip(*_SHARES, strict=True)
        while not self._stopping:
            asked = Asked(self._rng.choices(kinds, shares)[0], self._rng.choice(PROMPTS))
            task = asyncio.create_task(self._ask(asked))
            self.running[number] = (task, asked)
            try:
                await task
            except asyncio.CancelledError:
                if not asked.left:
                    raise
            except APIError as error:
                body = error.body if isinstance(error.body, dict) else {}
                asked.error = str(error.code or body.get("code") or f"{type(error).__name__}: {error}")
            except Exception as error:  # noqa: BLE001 - whatever the client's HTTP library raises is counted
                asked.error = f"{type(error).__name__}: {error}"
            finally:
                self.running.pop(number, None)
                task.cancel()
            self._judge(asked)
            if asked.error:
                await asyncio.sleep(_BREATH_S)

    def leave(self, number: int) -> bool:
        """Have the client of a stream go away in mid-answer; False when it has nothing running."""
        task, asked = self.running.get(number, (None, None))
        if task is None or asked is None:
            return False
        asked.left = True
        task.cancel()
        return True

    def _judge(self, asked: Asked) -> None:
        asked.ended = time.time()
        expected = self._expected[asked.kind, asked.prompt]
        if asked.left:
            asked.difference = compare(expected.ids[: len(asked.ids)], asked.ids)
            asked.whole = asked.difference.none
        else:
            asked.difference = compare(expected.ids, asked.ids)
            same = (asked.text, asked.finish) == (expected.text, expected.finish)
            asked.whole = not asked.error and asked.difference.none and same
        self.done.append(asked)

    async def _ask(self, asked: Asked) -> None:
        order: dict[str, Any] = {"model": self._model, "max_tokens": _MAX_TOKENS, "temperature": 0}
        if asked.kind == "sampled":
            order |= {"temperature": 0.8, "seed": _SEED}
        order["extra_body"] = {"return_token_ids": True}
        if asked.kind != "completion":
            order["messages"] = [{"role": "user", "content": asked.prompt}]
        routes = self._client.completions if asked.kind == "completion" else self._client.chat.completions
        if asked.kind != "completion":
            order |= {"stream": asked.kind != "whole"}
        else:
            order |= {"prompt": asked.prompt, "stream": True}
        raw: Any = await routes.with_raw_response.create(**order)
        asked.request = raw.headers.get("unbroken-request-id", "")
        if asked.kind == "whole":
            self._add(asked, raw.parse().choices)
            return
        before = time.monotonic()
        async with raw.parse() as stream:
            async for chunk in stream:
                self._add(asked, chunk.choices)
                now = time.monotonic()
                asked.gap, before = max(asked.gap, now - before), now

    def _add(self, asked: Asked, choices: Any) -> None:
        for choice in choices:
            asked.ids += (choice.model_extra or {}).get("token_ids") or []
            part = getattr(choice, "delta", None) or getattr(choice, "message", None)
            asked.text += (part.content if part is not None else choice.text) or ""
            asked.finish = choice.finish_reason or asked.finish

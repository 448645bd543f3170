"""Requests that run while a fault strikes, and the node that serves most of them."""

import asyncio
from collections import Counter

from openai import AsyncOpenAI, OpenAIError

from cli.answers import Answer, stream_answer
from cli.demo import PROMPTS
from cli.faults import FaultFailed

_MAX_TOKENS = 96
_UNDER_WAY = 8
_UNDER_WAY_S = 30.0
_LEAST_ON_VICTIM = 2
_END_S = 90.0


class Requests:
    """Some streams begun together."""

    def __init__(self, client: AsyncOpenAI, model: str, count: int, number: int) -> None:
        self._answers = [Answer(PROMPTS[n % len(PROMPTS)], f"{number}.{n} You explain things.") for n in range(count)]
        self._tasks = [
            asyncio.create_task(stream_answer(client, answer, model=model, max_tokens=_MAX_TOKENS))
            for answer in self._answers
        ]

    async def busiest(self) -> str:
        """Return the node that decodes most of them, two at least, once all are under way. Raises FaultFailed."""
        end = asyncio.get_running_loop().time() + _UNDER_WAY_S
        while any(len(answer.arrivals) < _UNDER_WAY for answer in self._answers):
            if asyncio.get_running_loop().time() > end or any(task.done() for task in self._tasks):
                raise FaultFailed("the requests were not under way together")
            await asyncio.sleep(0.01)
        node, streams = Counter(answer.node for answer in self._answers).most_common(1)[0]
        if streams < _LEAST_ON_VICTIM:
            raise FaultFailed(f"no node serves {_LEAST_ON_VICTIM} streams")
        return node

    async def whole(self) -> int:
        """Wait for their ends; return how many ended with all their text."""
        if not self._tasks:
            return 0
        done, late = await asyncio.wait(self._tasks, timeout=_END_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        broken = [task for task in done if isinstance(task.exception(), OpenAIError | OSError)]
        return sum(task.result().finish_reason in ("stop", "length") for task in done if task not in broken)

"""The command line's client of the operations API: finds the gateway and key, turns problems into messages."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from cli.stack import read_addresses
from recovery.config import load
from recovery.errors import UnbrokenError


class GatewayAnswer(UnbrokenError):
    """The gateway refused the request, or could not be reached."""


@dataclass(frozen=True, slots=True)
class Target:
    """A gateway and the key to show it."""

    url: str
    key: str


def find_target(url: str | None, key: str | None) -> Target:
    """Return the gateway named, else the one of the stack running in this state directory."""
    if url:
        return Target(url.rstrip("/"), key or "")
    addresses = read_addresses(load())
    return Target(addresses.gateway, key or addresses.operator_key)


class Operations:
    """A session with one gateway's operations API."""

    def __init__(self, target: Target, session: aiohttp.ClientSession) -> None:
        self._target = target
        self._session = session

    async def get(self, path: str) -> Any:
        """GET a path and return its JSON. Raises GatewayAnswer."""
        return await self._call("GET", path, None)

    async def metric(self, name: str) -> float:
        """Return the sum of a metric of the gateway over all its labels, 0 when it has none yet."""
        async with self._session.get(self._target.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST JSON and return the answer's JSON. Raises GatewayAnswer."""
        return await self._call("POST", path, body)

    async def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        try:
            async with self._session.request(method, self._target.url + path, json=body) as response:
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise GatewayAnswer(f"no proper answer from the gateway at {self._target.url}: {error}") from error
        if response.status >= 400:
            raise GatewayAnswer(_explain(response.status, answer))
        return answer


@asynccontextmanager
async def operations(target: Target, timeout: float = 10.0) -> AsyncGenerator[Operations]:
    """Open a session with a gateway's operations API."""
    headers = {"Authorization": f"Bearer {target.key}"} if target.key else {}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=timeout)) as session:
        yield Operations(target, session)


def _explain(status: int, answer: Any) -> str:
    """Read a problem document (RFC 9457) or an OpenAI-shaped error."""
    if isinstance(answer, dict):
        problem = answer.get("error", answer)
        if isinstance(problem, dict):
            text = problem.get("detail") or problem.get("message") or problem.get("title")
            where = problem.get("instance")
            return f"{text} (HTTP {status})" + (f", see {where}" if where else "")
    return f"the gateway answered HTTP {status}"

"""The one door to Redis: clients with deadlines, and the Lua scripts of `recovery/lua/`.

Every failure to answer in time comes out as StoreUnavailable; nobody above sees a redis-py error.
"""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import redis.exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript

from recovery.config import RedisSettings
from recovery.errors import StoreUnavailable, StoreUnsafe

PREFIX = "unbroken:"
EVENTS = PREFIX + "events"
HEARTBEATS = PREFIX + "heartbeats"
TOKENS = PREFIX + "tokens"
NODES = PREFIX + "nodes"
SENTINELS = PREFIX + "sentinels"
JOBS = PREFIX + "jobs"
LIVE_JOBS = PREFIX + "jobs:live"

_LUA = Path(__file__).parent / "lua"
_AWAY = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError,
    OSError,
)


def node_key(node: str, part: str = "") -> str:
    """Return the key of a node's hash, or of its `part` (lease, epoch, requests)."""
    return f"{PREFIX}{{node:{node}}}" + (f":{part}" if part else "")


def request_key(request: str, part: str = "") -> str:
    """Return the key of a request's journal hash, or of its `part` (tokens)."""
    return f"{PREFIX}{{request:{request}}}" + (f":{part}" if part else "")


def job_key(job: str, part: str = "") -> str:
    """Return the key of a job's hash, or of its `part` (audit)."""
    return f"{PREFIX}{{job:{job}}}" + (f":{part}" if part else "")


def inbox_key(gateway: str) -> str:
    """Return the key of the stream that carries assignments to a gateway."""
    return f"{PREFIX}gateway:{gateway}:inbox"


@contextmanager
def available() -> Generator[None]:
    """Turn 'Redis did not answer' into StoreUnavailable."""
    try:
        yield
    except _AWAY as error:
        raise StoreUnavailable(f"Redis did not answer: {error}") from error


class Store:
    """Redis clients of one process. Made after any fork; closed by its owner.

    `redis` decodes replies to text, `raw` leaves bytes; both wait at most `timeout_ms` for a reply.
    """

    def __init__(self, url: str, timeout_ms: int = 1_000) -> None:
        self.url = url
        self._timeout = timeout_ms / 1_000
        # redis-py types every reply as text or bytes or both; which it is follows from the client here.
        self.redis: Any = self._client(decode=True)
        self.raw: Any = self._client(decode=False)

    def _client(self, *, decode: bool, blocking: bool = False) -> Redis:
        pool = BlockingConnectionPool.from_url(
            self.url,
            decode_responses=decode,
            max_connections=2 if blocking else 32,
            timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            socket_timeout=None if blocking else self._timeout,
            socket_keepalive=True,
            # One immediate retry on a fresh connection: a restarted server costs no error.
            retry=Retry(NoBackoff(), 1),
        )
        return Redis.from_pool(pool)

    @asynccontextmanager
    async def reader(self) -> AsyncGenerator[Any]:
        """Lend a client for blocking reads (BLOCK ≤ 1,000 ms): it has no socket deadline of its own."""
        client = self._client(decode=True, blocking=True)
        try:
            yield client
        finally:
            await client.aclose()

    async def run(self, script: str, keys: Sequence[str], args: Sequence[str | int | float | bytes] = ()) -> Any:
        """Run `recovery/lua/<script>.lua` and return its reply (text)."""
        with available():
            return await _script(self.redis, script)(keys=list(keys), args=list(args))

    async def run_many(
        self, script: str, calls: Sequence[tuple[Sequence[str], Sequence[str | int | float]]]
    ) -> list[Any]:
        """Run a script once per (keys, args) in one round trip and return the replies in order."""
        if not calls:
            return []
        with available():
            async with self.redis.pipeline(transaction=False) as pipe:
                ready = _script(self.redis, script)
                for keys, args in calls:
                    await ready(keys=list(keys), args=list(args), client=pipe)
                return list(await pipe.execute())

    async def check(self) -> None:
        """Refuse a Redis that may evict our state (design, section 4)."""
        with available():
            try:
                policy = await self.redis.config_get("maxmemory-policy")
            except redis.exceptions.ResponseError:
                return  # managed services hide CONFIG; nothing to judge by
        name = policy.get("maxmemory-policy", "noeviction")
        if name.startswith("allkeys-"):
            raise StoreUnsafe(
                f"redis maxmemory-policy is {name}: leases and journals could vanish; set it to noeviction"
            )

    async def aclose(self) -> None:
        """Close all connections."""
        await self.redis.aclose()
        await self.raw.aclose()


def connect(settings: RedisSettings) -> Store:
    """Return a store on the configured Redis. Raises SettingsError when none is configured."""
    return Store(settings.address(), settings.timeout_ms)


@cache
def _source(script: str) -> str:
    return (_LUA / f"{script}.lua").read_text(encoding="utf-8")


def _script(client: Redis, script: str) -> AsyncScript:
    return client.register_script(_source(script))

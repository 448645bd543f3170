"""Beside the stream: does the agent's host take a connection, and does the agent answer on one (requirements B1, D3)?

The host's kernel takes connections for a stopped agent, too. That tells a dead link from a stopped agent.
"""

import asyncio
import time

import grpc
import grpc.aio

from detectors.evidence import HostAnswered, HostSilent, SecondPathAnswered, SecondPathFailed
from detectors.reports import report_of
from protocol import unbroken_pb2 as pb
from protocol import unbroken_pb2_grpc as rpc
from protocol.channel import credentials, open_channel
from recovery.stopping import stop_tasks

_LAST_LOOK_S = 0.002
"""After the deadline: what came while this process itself was late must still be seen."""
_SILENCES = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})


async def knock(address: str, deadline_s: float, every_s: float) -> HostAnswered | HostSilent:
    """Try to connect to `address`, anew every `every_s` beside the tries before, until one is taken or refused."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return HostSilent(f"{address!r} is no host:port")
    tries: set[asyncio.Task[None]] = set()
    now = time.monotonic()
    end, next_try, made, trouble = now + deadline_s, now, 0, ""
    try:
        while now < end:
            if now >= next_try:
                tries.add(asyncio.create_task(_connect(host.strip("[]"), int(port))))
                next_try, made = now + every_s, made + 1
            ended = await _ended(tries, min(next_try, end) - now) or (
                await _ended(tries, _LAST_LOOK_S) if time.monotonic() >= end else set()
            )
            tries -= ended
            errors = [task.exception() for task in ended]
            if None in errors:
                return HostAnswered()
            if any(isinstance(error, ConnectionRefusedError) for error in errors):
                return HostSilent(f"{address}: connection refused", refused=True)
            trouble = next((str(error) for error in errors if not isinstance(error, TimeoutError)), trouble)
            now = time.monotonic()
    finally:
        await stop_tasks(*tries)
    return HostSilent(
        f"{address}: no connection within {deadline_s * 1e3:.0f} ms, {made} tries" + (f": {trouble}" if trouble else "")
    )


async def _connect(host: str, port: int) -> None:
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
    transport.abort()


async def _ended(tries: set[asyncio.Task[None]], wait_s: float) -> set[asyncio.Task[None]]:
    if not tries:
        await asyncio.sleep(wait_s)
        return set()
    done, _ = await asyncio.wait(tries, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    return done


async def ask_status(
    node: str, address: str, token: str | None, deadline_s: float
) -> SecondPathAnswered | SecondPathFailed:
    """Ask the agent for its report on a connection of its own, within `deadline_s`."""
    channel = open_channel(address)
    try:
        async with asyncio.timeout(deadline_s):
            report = await rpc.AgentStub(channel).Status(
                pb.StatusRequest(), metadata=credentials(token), timeout=deadline_s
            )
    except TimeoutError:
        return SecondPathFailed(f"no answer within {deadline_s * 1e3:.0f} ms")
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return SecondPathFailed(f"no answer within {deadline_s * 1e3:.0f} ms")
        if error.code() in _SILENCES:
            return SecondPathFailed(f"{error.code().name.lower()}: {error.details()}")
        return SecondPathAnswered()  # refused by a living agent
    finally:
        await channel.close()
    if report.node and report.node != node:
        return SecondPathFailed(f"the agent there is node {report.node}'s")
    return SecondPathAnswered(report_of(report))

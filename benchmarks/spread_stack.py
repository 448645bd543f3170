"""The embedded stack with its nodes elsewhere: agents and engines in namespaces, all else in this network."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.namespaces import Namespace
from cli.stack import Addresses, Stack
from cli.supervisor import Child, Sink
from recovery.config import Settings


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node runs."""

    space: Namespace
    address: str
    """The node's, as the control plane reaches it."""
    control: str
    """The control plane's, as the node reaches it."""


class SpreadStack(Stack):
    """A whole installation whose nodes run where `places` says; this thread's network must be a private one."""

    def __init__(self, settings: Settings, sink: Sink, places: Mapping[str, Place]) -> None:
        super().__init__(settings, sink)
        self._places = places

    def _redis(self, addresses: Addresses) -> Child:
        child = super()._redis(addresses)
        # Only this run's own namespaces reach it.
        return replace(child, argv=[*child.argv, "--bind", "*", "--protected-mode", "no"])

    def _processes(self, env: dict[str, str]) -> list[Child]:
        return [self._placed(child) for child in super()._processes(env)]

    def _placed(self, child: Child) -> Child:
        place = self._places.get(child.name.removeprefix("agent-")) if child.name.startswith("agent-") else None
        if place is None:
            return child
        changes = {
            "UNBROKEN_NODE__AGENT_HOST": place.address,
            "UNBROKEN_NODE__ENGINE_HOST": place.address,
            "UNBROKEN_REDIS__URL": child.env["UNBROKEN_REDIS__URL"].replace("127.0.0.1", place.control),
        }
        return replace(child, argv=place.space.command(child.argv), env={**child.env, **changes})

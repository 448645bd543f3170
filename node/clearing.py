"""Finds every process of a node's older engines and ends it: recorded, marked, or known from when the engine was ready.

Orphans come to the agent, which reaps them, so that nothing is left, no zombie either.
"""

import asyncio

from node import processes
from node.mark import Mark
from node.processes import Identity
from node.reaper import Reaper
from node.reclaim import Ended, end_all, find
from node.running import Running
from node.state import NodeDir, Record

_KILL_DEADLINE_S = 10.0


class Clearing:
    """What runs, or still runs, of one node's engines."""

    def __init__(self, node: str, home: NodeDir) -> None:
        self.reaper = Reaper()
        self.ended: set[int] = set()
        """Pids ended since the last fence."""
        self._node = node
        self._home = home

    def older(self, record: Record | None, epoch: int) -> set[Identity]:
        """Return the living processes of epochs below `epoch`, those of `record` included. Reads all of /proc."""

        def wanted(mark: Mark) -> bool:
            return mark.node == self._node and mark.holder == self._home.holder and mark.epoch < epoch

        found = find(record if record is not None and record.epoch < epoch else None, wanted)
        self.reaper.know(found)
        return found

    async def end(self, engine: Running | None, epoch: int, grace_s: float) -> Ended:
        """End everything of epochs below `epoch`: `engine`, or what is recorded, and whatever carries our mark."""
        record = engine.record if engine is not None else self._home.engine
        # Its main process gone, a child without our mark is known by nothing else.
        members = engine.watch.members if engine is not None and engine.watch is not None else []

        def search() -> set[Identity]:
            return self.older(record, epoch) | {member for member in members if processes.alive(member)}

        ended = await end_all(search, engine.launched.child if engine is not None else None, grace_s, _KILL_DEADLINE_S)
        self.ended.update(ended.pids)
        await asyncio.to_thread(self.reaper.reap)
        return ended

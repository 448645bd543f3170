"""Probes of a node whose engine is real: earned trust, and a hang that nobody else sees."""

from pathlib import Path

from recovery import events, registry
from recovery.registry import NodeState
from recovery.store import Store
from tests.integration.detectors.test_sentinel import read_events, sentinel, until_state
from tests.rigs.engine import running_engine
from tests.rigs.fake_agent import fake_agent


async def test_a_node_earns_its_traffic_back_and_loses_its_life_to_a_hang(
    redis_url: str, store: Store, tmp_path: Path
) -> None:
    """Probation with a real engine behind it, then SIGSTOP while idle: the agent sees nothing, the probe does."""
    quick = {"hold_s": 0.5, "step": 0.25, "step_interval_s": 0.1}
    async with running_engine(tmp_path, slots=1, context=256) as engine, fake_agent("a") as agent:
        agent.report.engine_url = engine.url
        await agent.join(store, NodeState.PROBATION)
        async with sentinel(redis_url, probation=quick, probe={"interval_s": (0.3, 0.5)}):
            node = await until_state(store, NodeState.ALIVE)
            assert node.weight == 1.0
            weights = [float(event.fields["weight"]) for event in await read_events(store, events.Kind.NODE_STATE)]
            steps = weights[weights.index(0.25) :]  # a look that came late takes two at once
            assert steps == sorted(set(steps) & {0.25, 0.5, 0.75, 1.0})
            engine.stop()
            dead = await until_state(store, NodeState.DEAD)
            (verdict,) = await read_events(store, events.Kind.NODE_DEAD)
            engine.cont()
    assert verdict.fields["cause"] == "hang"
    assert dead.weight == 0.0
    assert (await registry.get(store, "a")).cause == "hang"

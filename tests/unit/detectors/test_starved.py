"""What a starved sentinel finds late may be late with it only: it begins and ends no suspicion by itself."""

from dataclasses import replace

from detectors.evidence import ChangeState, EngineDown, Gpu, LeaseExpired
from recovery.registry import NodeState
from tests.unit.detectors.courtroom import SERVING, Courtroom, World, open_court


def states(court: Courtroom) -> list[NodeState]:
    """Return the states it has made known."""
    return [decision.state for _, decision in court.said if isinstance(decision, ChangeState)]


def silent() -> Courtroom:
    """Return a court whose agent has gone silent, while its host still answers."""
    court = open_court()
    court.world = World(pong_after=None, status_after=None)
    return court


def test_late_pongs_are_no_suspicion_while_the_sentinel_is_starved() -> None:
    """Hundreds of them would be as many writes and events, and starve it further."""
    court = silent()
    court.judge.starved = court.judge.blind = True
    court.run(1.5)
    assert court.judge.misses > 0
    assert states(court) == []


def test_the_same_silence_is_one_when_it_is_not() -> None:
    """The rule holds nothing back from a sentinel that gets to run."""
    court = silent()
    court.run(1.5)
    assert states(court) == [NodeState.SUSPECT]


def test_a_suspicion_comes_when_the_sentinel_runs_again() -> None:
    """It is put off, not lost."""
    court = silent()
    court.judge.starved = True
    court.run(1.0)
    court.judge.starved = False
    court.run(0.5)
    assert states(court) == [NodeState.SUSPECT]


def test_an_earlier_suspicion_stays_until_the_sentinel_runs_again() -> None:
    """Neither does it end one."""
    court = silent()
    court.run(1.0)
    court.judge.starved = True
    court.world = World()
    court.run(1.0)
    assert court.judge.state is NodeState.SUSPECT
    court.judge.starved = False
    court.run(0.5)
    assert states(court) == [NodeState.SUSPECT, NodeState.ALIVE]


def test_what_an_agent_says_counts_at_once() -> None:
    """A sick driver or a lost lease takes the weight whoever is starved: that is said, not concluded from silence."""
    for world in (
        World(report=replace(SERVING, gpu=Gpu.DRIVER_UNRESPONSIVE)),
        World(report=replace(SERVING, lease_held=False)),
    ):
        court = open_court()
        court.judge.starved = court.judge.blind = True
        court.tell(LeaseExpired())
        court.judge.blind = False
        court.world = world
        court.run(0.5)
        assert (court.judge.state, court.judge.weight) == (NodeState.SUSPECT, 0.0)


def test_proof_of_death_is_not_held_back() -> None:
    """A process that is gone is gone."""
    court = open_court()
    court.judge.starved = court.judge.blind = True
    court.tell(EngineDown(1, "process_exit", "signal 9"))
    assert [verdict.cause for verdict in court.verdicts] == ["process_exit"]

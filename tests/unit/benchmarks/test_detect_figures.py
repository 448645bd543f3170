"""Who is credited with having seen a fault: what the recovery did must not count as something TCP or a poll saw."""

import io
import json

from benchmarks.detect_faults import FAULTS, Struck
from benchmarks.detect_figures import Injection, figures
from benchmarks.detect_sightings import Sightings, Verdict
from benchmarks.detect_witnesses import PollWitness

MS = 1_000_000
AT = 5_000 * MS


def _injection(name: str, *, out: int | None, tcp: int = 0, poll: int = 0, relieved: int = 4_000) -> Injection:
    """Make an injection; times in ms after the fault, 0 for never."""
    witness = PollWitness("http://nowhere")
    witness.failed_ns = AT + poll * MS if poll else 0
    return Injection.of(
        FAULTS[name],
        Struck(AT, 1_000.0, "proof"),
        out_ns=AT + out * MS if out is not None else None,
        verdict=Verdict("a", 1, "hang", "", 1_000 + out - 1) if out is not None else None,
        tcp_ns=AT + tcp * MS if tcp else 0,
        poll=witness,
        relieved_ns=AT + relieved * MS,
    )


def test_a_connection_that_the_recovery_closed_has_seen_nothing() -> None:
    """The engine was only stopped; the recovery killed it after the verdict."""
    one = _injection("engine_stopped_idle", out=500, tcp=2_500)
    assert one.tcp_ms is None
    assert one.silent_ms == 2_500


def test_a_connection_that_the_fault_closed_has_seen_it_even_after_the_verdict() -> None:
    """A killed engine's sockets close when its memory is freed, whatever the verdict did meanwhile."""
    assert _injection("engine_killed", out=8, tcp=555).tcp_ms == 555


def test_a_poll_that_met_an_engine_ended_by_its_agent_is_no_sighting() -> None:
    """The front of a two-process engine stays green; only the agent's kill made the poll fail."""
    one = _injection("child_killed", out=8, poll=1_300)
    assert one.poll_ms is None
    assert one.overtaken


def test_a_poll_of_a_stopped_engine_counts() -> None:
    """The recovery leaves a stopped engine as it is until the poll's timeout is over."""
    assert _injection("engine_stopped_idle", out=500, poll=2_300).poll_ms == 2_300


def test_the_stages_add_up_and_misses_are_counted() -> None:
    """From fault to verdict, from verdict to gateway; an injection nobody found is no figure but a count."""
    shown = figures(
        {"agent_stopped": [_injection("agent_stopped", out=300), _injection("agent_stopped", out=None)]}, {}, [], []
    )["faults"]["agent_stopped"]
    assert shown["injections"] == 2
    assert shown["not_found"] == 1
    assert shown["gateway_weight_0_ms"]["max"] == 300
    assert shown["fault_to_verdict_ms"]["max"] + shown["verdict_to_gateway_ms"]["max"] == 300
    assert shown["tcp_silent"]["count"] == 2
    json.dumps(shown)


async def test_the_gateways_first_word_on_a_node_is_kept() -> None:
    """Repeated verdicts change nothing; other processes' lines say nothing."""
    sightings = Sightings(io.StringIO())
    line = {"event": "routing.node_out", "node": "a", "epoch": 3}
    sightings.sink("sentinel", json.dumps({**line, "monotonic_ns": 1}))
    assert await sightings.out_ns("a", 3, 0.01) is None
    sightings.sink("gateway", json.dumps({**line, "monotonic_ns": 7}))
    sightings.sink("gateway", json.dumps({**line, "monotonic_ns": 9}))
    assert await sightings.out_ns("a", 3, 0.01) == 7
    assert await sightings.out_ns("a", 4, 0.01) is None

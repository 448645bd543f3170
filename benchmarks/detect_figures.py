"""What came of each injection, and the figures made of them, in ms from the fault on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from benchmarks.detect_faults import FAULTS, Fault, Struck
from benchmarks.detect_sightings import Verdict
from benchmarks.detect_witnesses import POLL_EVERY_S, POLL_TIMEOUT_S, PollWitness
from benchmarks.report import spread

MEANING = {
    "gateway_weight_0_ms": "fault to the gateway's table giving the node weight 0 (CLOCK_MONOTONIC in both processes)",
    "fault_to_verdict_ms": "fault to the node.dead event in Redis (Redis's clock, whole ms, rounded down)",
    "verdict_to_gateway_ms": "the rest of gateway_weight_0_ms",
    "not_found": "injections without weight 0 within 20 s",
    "causes": "causes the verdicts named",
    "tcp_ms": "fault to the end of a TCP connection held open to the engine, where the fault itself ended it",
    "tcp_silent": "injections in which that connection showed nothing until the fault was undone or the recovery "
    "acted; the shortest and longest such silence",
    "http_poll_ms": "fault to the first failed GET /health, polled every "
    f"{POLL_EVERY_S:g} s with {POLL_TIMEOUT_S:g} s timeout; real pollers wait for more than one failure",
    "http_poll_blind": "injections in which no poll failed although one was made after the fault",
    "http_poll_overtaken": "injections in which the agent had ended the engine before a poll was due; see alone",
    "alone": "the same fault on three engines without agent or recovery, watched for 10 s",
    "streams_whole": "requests that ran while the fault struck and ended with all their text",
    "child_killed": "the engine is the repository's own two-process rig on llama.cpp; vLLM was not run",
}


@dataclass(slots=True)
class Injection:
    """One fault and who saw it when, ms after it; None: did not see it."""

    wall_ms: float
    proof: str
    found_ms: float | None
    verdict_ms: float | None
    cause: str
    tcp_ms: float | None
    silent_ms: float
    """How long TCP was watched without a sign."""
    poll_ms: float | None
    polls_passed: int
    overtaken: bool
    """Whether the agent ended the engine before a poll could show what it made of the fault."""
    streams: int = 0
    streams_whole: int = 0

    @classmethod
    def of(
        cls,
        fault: Fault,
        struck: Struck,
        *,
        out_ns: int | None,
        verdict: Verdict | None,
        tcp_ns: int,
        poll: PollWitness,
        relieved_ns: int,
    ) -> Self:
        """Put together what was seen."""

        def after(at_ns: int | None) -> float | None:
            return (at_ns - struck.at_ns) / 1e6 if at_ns else None

        # Once the verdict is out, a recovery may end an engine that the fault left running.
        end_ns = relieved_ns if fault.ends_engine else min(relieved_ns, out_ns or relieved_ns)
        seen = tcp_ns and tcp_ns <= end_ns
        overtaken = fault.overtaken and poll.failed_ns > (out_ns or relieved_ns)
        return cls(
            wall_ms=struck.wall_ms,
            proof=struck.proof,
            found_ms=after(out_ns),
            verdict_ms=verdict.wall_ms - struck.wall_ms if verdict else None,
            cause=verdict.cause if verdict else "",
            tcp_ms=after(tcp_ns) if seen else None,
            silent_ms=(min(tcp_ns or relieved_ns, relieved_ns) - struck.at_ns) / 1e6,
            poll_ms=None if overtaken else after(poll.failed_ns),
            polls_passed=poll.passed,
            overtaken=overtaken,
        )

    def line(self) -> str:
        """Say it in one line."""

        def ms(value: float | None) -> str:
            return "never" if value is None else f"{value:.1f} ms"

        return (
            f"gateway {ms(self.found_ms)} ({self.cause or 'no verdict'} {ms(self.verdict_ms)}), "
            f"TCP {ms(self.tcp_ms)}, poll {ms(self.poll_ms)}; {self.proof}"
        )


def figures(
    done: Mapping[str, Sequence[Injection]],
    alone: Mapping[str, dict[str, Any]],
    missed: list[str],
    unexpected: list[str],
) -> dict[str, Any]:
    """Return everything as JSON."""
    return {
        "faults": {
            name: _of(name, injections) | ({"alone": alone[name]} if name in alone else {})
            for name, injections in done.items()
        },
        "not_injected": missed,
        "unexpected_deaths": unexpected,
        "meaning": MEANING,
    }


def _of(name: str, injections: Sequence[Injection]) -> dict[str, Any]:
    silences = [one.silent_ms for one in injections if one.tcp_ms is None]
    found = [one for one in injections if one.found_ms is not None]
    staged = [one for one in found if one.verdict_ms is not None]
    shown: dict[str, Any] = {
        "fault": FAULTS[name].meaning,
        "injections": len(injections),
        "gateway_weight_0_ms": spread([one.found_ms for one in found if one.found_ms is not None]),
        "fault_to_verdict_ms": spread([one.verdict_ms for one in staged if one.verdict_ms is not None]),
        "verdict_to_gateway_ms": spread([(one.found_ms or 0.0) - (one.verdict_ms or 0.0) for one in staged]),
        "not_found": len(injections) - len(found),
        "causes": dict(Counter(one.cause for one in staged)),
        "tcp_ms": spread([one.tcp_ms for one in injections if one.tcp_ms is not None]),
        "tcp_silent": {"count": len(silences)},
        "http_poll_ms": spread([one.poll_ms for one in injections if one.poll_ms is not None]),
        "http_poll_blind": sum(one.poll_ms is None and one.polls_passed > 0 for one in injections),
        "http_poll_overtaken": sum(one.overtaken for one in injections),
        "proofs": [one.proof for one in injections[:3]],
    }
    if silences:
        shown["tcp_silent"] |= {"shortest_ms": round(min(silences)), "longest_ms": round(max(silences))}
    if any(one.streams for one in injections):
        shown["streams"] = sum(one.streams for one in injections)
        shown["streams_whole"] = sum(one.streams_whole for one in injections)
    return shown

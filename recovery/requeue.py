"""How a cut request goes on: its exactness class and the order for the next attempt (design, section 7).

Pure: used by the gateway when it resumes and announced to the client beforehand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Exactness = Literal["exact", "replayed", "continued", "refused"]

_STATEFUL = (
    "frequency_penalty", "presence_penalty", "response_format", "grammar", "json_schema", "tools",
)  # fmt: skip
"""Parameters whose engine state is built from the generated tokens alone: a prompt does not rebuild it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next attempt of a cut request."""

    exactness: Exactness
    prompt_ids: list[int]
    max_tokens: int
    min_tokens: int
    skip_ids: int
    """Leading ids of the new attempt that the client has already: verified, then dropped."""
    reason: str = ""
    """Why it is refused."""


def is_greedy(sampling: Mapping[str, Any]) -> bool:
    """Whether the parameters pick the likeliest token always."""
    temperature = sampling.get("temperature")
    return (temperature is not None and float(temperature) == 0.0) or sampling.get("top_k") == 1


def classify(
    sampling: Mapping[str, Any],
    *,
    token_ids: bool,
    invariant: bool,
    deterministic_seed: bool,
    same_identity: bool,
    prefer: Literal["exact", "speed"],
) -> Exactness:
    """Return the class a resume of such a request has on such an engine (requirements E1).

    Without our engine plugin, seeded sampling and everything with generation state is re-run from the
    original prompt and verified against what was delivered (``replayed``).
    """
    stateful = any(sampling.get(name) for name in _STATEFUL)
    if not (token_ids and invariant and same_identity):
        return "refused" if stateful else "continued"
    if is_greedy(sampling) and not stateful:
        return "exact"
    if stateful or prefer == "exact":
        return "replayed" if deterministic_seed else "refused" if stateful else "continued"
    return "continued"


def plan(
    exactness: Exactness,
    prompt_ids: Sequence[int],
    delivered_ids: Sequence[int],
    *,
    max_tokens: int,
    min_tokens: int = 0,
    reason: str = "",
) -> Plan:
    """Return the order that continues after `delivered_ids` (budgets reduced, requirements C1)."""
    done = len(delivered_ids)
    if exactness in ("exact", "continued"):
        return Plan(
            exactness,
            [*prompt_ids, *delivered_ids],
            max(max_tokens - done, 0),
            max(min_tokens - done, 0),
            0,
        )
    if exactness == "replayed":
        return Plan(exactness, list(prompt_ids), max_tokens, min_tokens, done)
    return Plan(
        "refused",
        list(prompt_ids),
        0,
        0,
        0,
        reason or "this kind of request cannot be resumed on this engine",
    )

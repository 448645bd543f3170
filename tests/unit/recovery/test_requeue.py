"""How a cut request goes on: budgets and exactness classes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery import requeue
from recovery.requeue import Exactness

ABLE = {"token_ids": True, "invariant": True, "deterministic_seed": True, "same_identity": True}


@pytest.mark.parametrize("done", [0, 1, 9, 10])
@pytest.mark.parametrize("exactness", ["exact", "continued"])
def test_a_continuation_extends_the_prompt_and_reduces_the_budgets(done: int, exactness: Exactness) -> None:
    """Whatever was delivered moves from the budget to the prompt: at 0, 1, n−1 and n tokens."""
    delivered = list(range(100, 100 + done))
    plan = requeue.plan(exactness, [1, 2], delivered, max_tokens=10, min_tokens=5)
    assert plan.prompt_ids == [1, 2, *delivered]
    assert plan.max_tokens == 10 - done
    assert plan.min_tokens == max(5 - done, 0)
    assert plan.skip_ids == 0


@pytest.mark.parametrize("done", [0, 1, 9, 10])
def test_a_replay_starts_from_the_prompt_and_skips_what_the_client_has(done: int) -> None:
    """Budgets stay whole, because the delivered tokens are generated again."""
    plan = requeue.plan("replayed", [1, 2], list(range(done)), max_tokens=10, min_tokens=5)
    assert (plan.prompt_ids, plan.max_tokens, plan.min_tokens, plan.skip_ids) == ([1, 2], 10, 5, done)


@given(
    prompt=st.lists(st.integers(0, 9), max_size=5),
    delivered=st.lists(st.integers(0, 9), max_size=20),
    budget=st.integers(0, 15),
)
def test_no_plan_lets_a_client_get_more_than_it_asked_for(prompt: list[int], delivered: list[int], budget: int) -> None:
    """Delivered plus newly delivered tokens never pass max_tokens, nor is a budget negative."""
    for exactness in ("exact", "continued", "replayed"):
        plan = requeue.plan(exactness, prompt, delivered, max_tokens=budget)
        fresh = plan.max_tokens - plan.skip_ids
        assert plan.max_tokens >= 0
        assert fresh <= max(budget - len(delivered), 0)


def test_a_refusal_says_why() -> None:
    """It has no budget and carries the reason."""
    plan = requeue.plan("refused", [1], [2], max_tokens=10, reason="grammar state is lost")
    assert (plan.max_tokens, plan.reason) == (0, "grammar state is lost")
    assert requeue.plan("refused", [1], [2], max_tokens=10).reason


@pytest.mark.parametrize(
    ("sampling", "engine", "prefer", "expected"),
    [
        ({"temperature": 0}, {}, "exact", "exact"),
        ({"temperature": 0.0}, {}, "speed", "exact"),
        ({"top_k": 1}, {}, "exact", "exact"),
        ({"temperature": 0}, {"invariant": False}, "exact", "continued"),
        ({"temperature": 0}, {"token_ids": False}, "exact", "continued"),
        ({"temperature": 0}, {"same_identity": False}, "exact", "continued"),
        ({"temperature": 0.8, "seed": 1}, {}, "exact", "replayed"),
        ({"temperature": 0.8, "seed": 1}, {}, "speed", "continued"),
        ({"temperature": 0.8}, {"deterministic_seed": False}, "exact", "continued"),
        ({}, {}, "exact", "replayed"),
        ({"temperature": 0, "response_format": {"type": "json_object"}}, {}, "speed", "replayed"),
        ({"temperature": 0, "tools": [{}]}, {"deterministic_seed": False}, "exact", "refused"),
        ({"temperature": 0, "grammar": "x"}, {"invariant": False}, "exact", "refused"),
        ({"temperature": 0, "frequency_penalty": 0.5}, {"same_identity": False}, "speed", "refused"),
        ({"temperature": 0, "frequency_penalty": 0}, {}, "exact", "exact"),
    ],
)
def test_the_class_of_a_resume_is_declared_by_what_engine_and_request_allow(
    sampling: dict[str, object], engine: dict[str, bool], prefer: str, expected: str
) -> None:
    """Requirements E1."""
    assert requeue.classify(sampling, **{**ABLE, **engine}, prefer=prefer) == expected  # type: ignore[arg-type]

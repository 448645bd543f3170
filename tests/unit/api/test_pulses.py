"""What a gateway's streams tell of an engine's rhythm: signs of work, and silences that are worth a question."""

from contextlib import ExitStack

import pytest

from api.pulses import Pulses, Stall
from api.tether import Tether
from recovery.registry import Node

_STALL_S = 0.4
_FACTOR = 8.0
_TICK_S = 0.05


class _Clock:
    """Virtual time, read by the streams and the judge alike."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Time stands until a test moves it."""
    clock = _Clock()
    monkeypatch.setattr("api.tether.time", clock)
    return clock


class _FakeRead(Tether):
    """A stream whose reads begin and end by order."""

    __slots__ = ("reading",)

    def __init__(self, node: str = "a", epoch: int = 1) -> None:
        super().__init__(Node(node, epoch))
        self.reading = False

    @property
    def waits(self) -> bool:
        return self.reading

    def ask(self, now: float) -> None:
        self.asked, self.reading = now, True

    def answered(self, *, token: bool = True) -> None:
        """End a read, as a stream does: with a token, or only a sign of work on the prompt."""
        self.reading = False
        self.took()
        self.speaks = self.speaks or token


def _pulses() -> Pulses:
    return Pulses(_STALL_S, _FACTOR)


def _speak(pulses: Pulses, clock: _Clock, stream: _FakeRead, gaps: list[float]) -> list[Stall]:
    """Give a stream tokens with these gaps, looking every tick; return the stalls found meanwhile."""
    found, looked = [], clock.now
    for gap in gaps:
        stream.ask(clock.now)
        until = clock.now + gap
        while until - looked > _TICK_S:
            looked = clock.now = looked + _TICK_S
            found += pulses.stalls(clock.now)
        clock.now = until
        stream.answered()
    stream.ask(clock.now)
    return found


def _wait(pulses: Pulses, clock: _Clock, seconds: float) -> list[Stall]:
    found = []
    for _ in range(round(seconds / _TICK_S)):
        clock.now += _TICK_S
        found += pulses.stalls(clock.now)
    return found


def test_silence_under_a_stream_is_reported_once_and_again_after_movement(clock: _Clock) -> None:
    """Long before the silence that ends an attempt, and not over and over."""
    pulses, stream = _pulses(), _FakeRead()
    with pulses.felt(stream):
        assert _speak(pulses, clock, stream, [0.02] * 50) == []
        assert _wait(pulses, clock, 0.35) == []
        [stall] = _wait(pulses, clock, 5.0)
        assert (stall.node, stall.epoch, stall.streams) == ("a", 1, 1)
        assert _STALL_S < stall.stood_s <= _STALL_S + 2 * _TICK_S
        assert stall.usual_s == pytest.approx(0.02, rel=0.1)
        # When it moves, and stands again
        assert _speak(pulses, clock, stream, [0.02] * 100) == []
        assert len(_wait(pulses, clock, 5.0)) == 1


def test_one_stream_that_moves_speaks_for_all_on_its_engine(clock: _Clock) -> None:
    """A stream may wait for its turn in the engine; only when nobody gets anything does the engine stand."""
    pulses, waiting, moving, other = _pulses(), _FakeRead(), _FakeRead(), _FakeRead("b")
    with pulses.felt(waiting), pulses.felt(moving), pulses.felt(other):
        for stream in (waiting, moving, other):
            _speak(pulses, clock, stream, [0.02])
        found = _speak(pulses, clock, moving, [0.02] * 100)
        assert [stall.node for stall in found] == ["b"]


def test_a_prompt_being_computed_is_movement_and_a_wait_for_a_first_token_no_stall(clock: _Clock) -> None:
    """Work on one prompt keeps the whole engine from standing; silence before a first token is not judged here."""
    pulses, stream, prefill = _pulses(), _FakeRead(), _FakeRead()
    with pulses.felt(stream), pulses.felt(prefill):
        _speak(pulses, clock, stream, [0.02])
        for _ in range(40):
            prefill.ask(clock.now)
            assert _wait(pulses, clock, 0.2) == []
            prefill.answered(token=False)
        assert pulses.ages_ms(clock.now) == {"a@1": 0}
    with pulses.felt(waiting := _FakeRead("b")):
        waiting.ask(clock.now)
        assert _wait(pulses, clock, 5.0) == []


def test_an_engine_that_is_always_slow_stands_only_when_it_is_slow_for_itself(clock: _Clock) -> None:
    """Eight usual gaps: a token a quarter of a second makes 400 ms nothing unusual."""
    pulses, stream = _pulses(), _FakeRead()
    with pulses.felt(stream):
        _speak(pulses, clock, stream, [0.25] * 20)
        assert _wait(pulses, clock, 1.9) == []
        [stall] = _wait(pulses, clock, 0.2)
        assert stall.usual_s == pytest.approx(0.25, rel=0.05)


def test_a_batch_that_gets_its_tokens_together_does_not_look_faster_than_it_is(clock: _Clock) -> None:
    """Forty streams, a step every 150 ms: the usual gap is the step, not a fortieth of it."""
    pulses, streams = _pulses(), [_FakeRead() for _ in range(40)]
    with ExitStack() as together:
        for stream in streams:
            together.enter_context(pulses.felt(stream))
            stream.ask(clock.now)
        for _ in range(30):
            assert _wait(pulses, clock, 0.15) == []
            for stream in streams:
                stream.answered()
                stream.ask(clock.now)
        assert _wait(pulses, clock, 1.1) == []
        [stall] = _wait(pulses, clock, 0.3)
        assert (stall.streams, round(stall.usual_s, 2)) == (40, 0.15)


def test_a_client_that_does_not_read_is_not_the_engine_s_silence(clock: _Clock) -> None:
    """Its pause is not asked of the engine, neither while it lasts nor when it ends."""
    pulses, stream = _pulses(), _FakeRead()
    with pulses.felt(stream):
        _speak(pulses, clock, stream, [0.02] * 5)
        stream.reading = False  # handing over to the client, which blocks
        assert _wait(pulses, clock, 10.0) == []
        stream.ask(clock.now)
        assert _wait(pulses, clock, 0.35) == []
        assert len(_wait(pulses, clock, 0.2)) == 1


def test_the_gateway_s_own_sleep_is_no_silence(clock: _Clock) -> None:
    """A blocked loop hears nothing: silence counts only from its waking."""
    pulses, stream = _pulses(), _FakeRead()
    with pulses.felt(stream):
        _speak(pulses, clock, stream, [0.02] * 5)
        clock.now += 15.0
        pulses.slept(clock.now)
        assert _wait(pulses, clock, 0.35) == []
        assert len(_wait(pulses, clock, 0.2)) == 1


def test_signs_of_work_are_told_once_with_their_age_and_never_of_an_idle_engine(clock: _Clock) -> None:
    """Also those of a stream that began and ended between two messages."""
    pulses = _pulses()
    assert pulses.ages_ms(clock.now) == {}
    with pulses.felt(short := _FakeRead("a", 3)):
        _speak(pulses, clock, short, [0.01])
        short.reading = False
    with pulses.felt(silent := _FakeRead("b")):
        silent.ask(clock.now)
        clock.now += 0.12
        assert pulses.ages_ms(clock.now) == {"a@3": 120}
        assert pulses.ages_ms(clock.now) == {}


def test_engines_that_are_gone_are_forgotten_once_nobody_uses_them(clock: _Clock) -> None:
    """Epochs only grow, and so would memory."""
    pulses = _pulses()
    with pulses.felt(old := _FakeRead("a", 1)):
        pulses.keep({("a", 2)})
        old.ask(clock.now)
        old.answered()
        assert pulses.ages_ms(clock.now) == {"a@1": 0}
    pulses.keep({("a", 2)})
    assert pulses._pulses == {}

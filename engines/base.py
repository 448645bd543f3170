"""What every engine adapter offers, and the errors it may raise.

An adapter speaks to one running engine at one address; it holds no state of requests.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

FinishReason = Literal["stop", "length", "tool_calls"]


class EngineError(Exception):
    """The engine could not do what was asked.

    EngineError
    ├── EngineUnreachable   the request never reached the engine (refused, unresolved): free to repeat
    ├── EngineBroken        the answer ended without a terminal frame, or was not an answer
    │   └── EngineMute      it was an answer, but without the token it should hold
    ├── EngineTimeout       nothing came before the deadline
    └── EngineRejected      the engine answered 4xx/5xx: its status and body, unchanged
    """


class EngineUnreachable(EngineError):
    """The engine could not be reached; it has not seen the request."""


class EngineBroken(EngineError):
    """The engine ended its answer without a terminal frame."""


class EngineMute(EngineBroken):
    """The engine answered without generating anything."""


class EngineTimeout(EngineError):
    """The engine did not answer before the deadline."""


class EngineRejected(EngineError):
    """The engine refused the request; `status` and `body` are its own."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"engine answered HTTP {status}: {body[:300].decode('utf-8', 'replace')}")
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine is and can do, as it says itself once it serves."""

    kind: str
    """Adapter name: ``llamacpp``, ``vllm``, ``openai``."""
    model: str
    """Public model name, as in a request's ``model`` field."""
    identity: str
    """Same string, same answers: weights digest, quantization, adapters and exactness settings."""
    context: int
    """Tokens, prompt and answer together, that one request may use."""
    slots: int
    """Requests the engine runs at once."""
    token_ids: bool = True
    """Whether prompts and answers travel as token ids."""
    invariant: bool = False
    """Whether the same ids give the same next id however the batch is cut (design, section 7)."""
    deterministic_seed: bool = False
    """Whether a seeded run repeats itself from the original prompt (class ``replayed``)."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One attempt's order to an engine."""

    prompt_ids: Sequence[int]
    max_tokens: int
    """Tokens this attempt may produce, ≥ 1 (what was delivered before is already taken off)."""
    min_tokens: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """OpenAI-named parameters (temperature, top_p, seed, stop, …); unknown ones go to the engine as they are."""
    request_id: str = ""
    """Attempt id for the engine's own logs."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer.

    ``ids`` are the tokens whose text ends exactly where ``text`` ends. When an engine withholds ids
    (half a character, a stop string in doubt) and they cannot be recovered yet, ``ids`` is empty and
    ``sure`` is False: the text is good, but a resume must start at an earlier token boundary. A later
    sure chunk makes up for it: its ``ids`` then cover the text of all unsure chunks before it as well,
    so the ids collected from sure chunks are always those of the text up to the last sure chunk's end.
    """

    text: str
    ids: tuple[int, ...] = ()
    sure: bool = True
    finish: FinishReason | None = None
    """Set on the last chunk only."""
    cached: int | None = None
    """Prompt tokens the engine took from its cache: on the last chunk, and before any text where the engine says so.

    A chunk without text is a sign that the prompt is being computed.
    """
    generated: int | None = None
    """On the last chunk: tokens the engine generated in this attempt, those withheld included (for usage)."""
    logprobs: Any = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The engine's own account of its work, for the busy-or-stuck judgement."""

    counter: int
    """Grows whenever the engine loop does work (prompt tokens processed + tokens decoded)."""
    running: int
    waiting: int
    free_ratio: float
    """Free share of the KV cache, 0..1 (requirements B4)."""
    prefilling: int = 0
    """Running requests whose prompt is being computed: no token of theirs can be expected yet."""
    phase: Literal["serving", "compiling"] = "serving"
    """``compiling``: it compiles kernels or captures graphs, and its counter may stand for long meanwhile."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How to start an engine process."""

    argv: list[str]
    env: dict[str, str]


class Engine(Protocol):
    """One running engine. All waits have deadlines; all methods may raise `EngineError`."""

    kind: ClassVar[str]

    async def healthy(self, timeout: float) -> bool:
        """Whether the engine has loaded its model and serves; False while it loads or is away."""
        ...

    async def capabilities(self, timeout: float) -> Capabilities:
        """Return what the engine is and can do."""
        ...

    async def render(self, chat: Mapping[str, Any], timeout: float) -> list[int]:
        """Turn a chat request's messages into prompt ids by the model's own template (requirements C4)."""
        ...

    async def tokenize(self, text: str, timeout: float) -> list[int]:
        """Turn a plain prompt into ids, special tokens as the model wants them."""
        ...

    def generate(self, order: Generation, timeout: float) -> AsyncGenerator[list[Chunk], None]:
        """Yield the chunks of each network read; the last has ``finish``.

        ``timeout`` bounds connecting, not the answer. Closing the generator aborts the generation.
        Raises EngineBroken when the body ends without a terminal frame.
        """
        ...

    async def micro_inference(self, timeout: float) -> int:
        """Have one token generated for this call alone and return its id (requirements B3).

        Raises EngineTimeout when it is late; the request is then aborted in the engine.
        """
        ...

    async def progress(self, timeout: float) -> Progress:
        """Return the engine loop's own counters."""
        ...

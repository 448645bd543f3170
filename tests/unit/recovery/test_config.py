"""Settings are refused by name, before anything starts."""

from pathlib import Path

import pytest

from recovery import config
from recovery.errors import SettingsError


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file and no environment of the machine decides these tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNBROKEN_CONFIG", raising=False)


def write(text: str) -> None:
    """Write the settings file of the working directory."""
    Path("unbroken.toml").write_text(text, encoding="utf-8")


def test_defaults_are_those_the_requirements_name() -> None:
    """Requirements B1, B2, D3."""
    settings = config.load()
    assert (settings.heartbeat.interval_ms, settings.heartbeat.pong_deadline_ms) == (100, 80)
    assert (settings.heartbeat.fail_threshold, settings.heartbeat.ewma_alpha) == (3, 0.2)
    assert (settings.lease.renew_interval_ms, settings.lease.lease_timeout_ms) == (500, 5_000)


@pytest.mark.parametrize(
    ("text", "named", "reason"),
    [
        ("[leese]\nrenew_interval_ms = 1\n", "leese", "no such setting"),
        ("[lease]\nrenew_every = 1\n", "lease.renew_every", "no such setting"),
        ("[lease]\nrenew_interval_ms = 0\n", "lease.renew_interval_ms", "greater than 0"),
        ('[heartbeat]\ninterval_ms = "often"\n', "heartbeat.interval_ms", "integer"),
        ("[lease]\nrenew_interval_ms = 500\nlease_timeout_ms = 1499\n", "lease", "3 × renew_interval_ms"),
        ("[probe]\ninterval_s = [5.0, 3.0]\n", "probe", "from ≤ to"),
        ("[routing]\nmin_free = 1.5\n", "routing.min_free", "less than or equal to 1"),
        ('[request]\nprefer = "luck"\n', "request.prefer", "'exact' or 'speed'"),
        ("[stack]\nnodes = []\n", "stack.nodes", "at least 1"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name_and_the_reason(text: str, named: str, reason: str) -> None:
    """Nobody has to guess which line is wrong."""
    write(text)
    with pytest.raises(SettingsError, match=named) as refused:
        config.load()
    assert reason in str(refused.value)


def test_a_lease_of_three_renewals_is_just_allowed() -> None:
    """The ratio's border (requirements D3)."""
    write("[lease]\nrenew_interval_ms = 500\nlease_timeout_ms = 1500\n")
    assert config.load().lease.lease_timeout_ms == 1_500


def test_all_wrong_settings_are_named_at_once() -> None:
    """Two mistakes cost one restart."""
    write("[lease]\nrenew_interval_ms = 0\n[gateway]\nport = 70000\n")
    with pytest.raises(SettingsError, match=r"lease\.renew_interval_ms.*gateway\.port"):
        config.load()


def test_the_environment_overrides_the_file_and_arguments_override_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order the design promises."""
    write('[redis]\nurl = "redis://file"\ntimeout_ms = 7\n')
    monkeypatch.setenv("UNBROKEN_REDIS__URL", "redis://environment")
    assert config.load().redis.url == "redis://environment"
    assert config.load().redis.timeout_ms == 7
    assert config.load(redis={"url": "redis://argument"}).redis.url == "redis://argument"


def test_a_named_settings_file_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error in a path must not mean defaults."""
    monkeypatch.setenv("UNBROKEN_CONFIG", "nowhere.toml")
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        config.load()


def test_a_file_that_is_not_toml_is_refused_with_its_name() -> None:
    """Including where the file is."""
    write("[lease\n")
    with pytest.raises(SettingsError, match=r"unbroken\.toml"):
        config.load()


def test_another_process_loads_exactly_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment a supervisor hands on outweighs whatever file the other process finds."""
    # Given settings changed in several ways, and a file that says otherwise
    settings = config.load(
        redis={"url": "redis://127.0.0.1:1/0"},
        stack={"nodes": ["x", "y", "z"], "state_dir": tmp_path},
        probe={"interval_s": (1.0, 2.0)},
        request={"prefer": "speed"},
    )
    (tmp_path / "unbroken.toml").write_text('[stack]\nnodes = ["other"]\n[limits]\ntakeovers = 9\n')
    # When another process starts with their environment
    monkeypatch.chdir(tmp_path)
    for name, value in config.as_environment(settings).items():
        monkeypatch.setenv(name, value)
    # Then
    assert config.load() == settings

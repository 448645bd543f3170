"""The operator's own command line for an engine (`node.command`), its placeholders filled in.

Braces around anything but a lower-case word are left alone, so that JSON may be passed to an engine.
"""

import re
from collections.abc import Mapping, Sequence

from recovery.errors import SettingsError

PLACEHOLDERS = ("host", "port", "model", "alias", "slots", "context")

_NAMED = re.compile(r"\{([a-z_]+)\}")


def wants(command: Sequence[str], placeholder: str) -> bool:
    """Whether the command names a placeholder."""
    return any(placeholder in _NAMED.findall(part) for part in command)


def check(command: Sequence[str]) -> None:
    """Raise SettingsError for a placeholder nobody fills in, or an empty program name."""
    unknown = [name for part in command for name in _NAMED.findall(part) if name not in PLACEHOLDERS]
    if unknown:
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise SettingsError(f"node.command: {{{unknown[0]}}} is no placeholder; known are {known}")
    if command and not command[0]:
        raise SettingsError("node.command: its first part, the program to run, is empty")


def fill(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the command with `values` in the placeholders' places. Raises SettingsError as `check` does."""
    check(command)
    return [_NAMED.sub(lambda found: values[found[1]], part) for part in command]

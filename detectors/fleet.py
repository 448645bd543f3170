"""What all watches of a sentinel share."""

from dataclasses import dataclass, field

import aiohttp

from detectors.blindness import Blindness
from detectors.rules import Rules
from recovery.config import Settings
from recovery.store import Store


@dataclass(slots=True)
class Fleet:
    """Settings and connections (the sentinel owns and closes them), and whether it sees at all."""

    settings: Settings
    rules: Rules
    store: Store
    session: aiohttp.ClientSession
    token: str | None
    sentinel: str
    blindness: Blindness = field(default_factory=Blindness)
    redis_away: bool = False

    @property
    def blind(self) -> bool:
        """Whether unproven verdicts must wait."""
        return self.redis_away or self.blindness.blind

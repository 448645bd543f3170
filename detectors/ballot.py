"""The sentinels' votes on one (node, epoch): an unproven death needs most of those that watch it (design, section 5).

Pure: times are passed in, in seconds.
"""

from collections.abc import Sequence

from detectors.evidence import Elected, Vote

_VALID_S = 1.0
"""A vote is repeated several times a second for as long as it stands; an older one has been given up."""


class Ballot:
    """Each sentinel's last vote."""

    def __init__(self) -> None:
        self._votes: dict[str, tuple[Vote, float]] = {}

    def cast(self, sentinel: str, vote: Vote, at: float) -> None:
        """Take a sentinel's vote, given at `at`."""
        self._votes[sentinel] = (vote, at)

    def result(self, watchers: Sequence[str], now: float) -> Elected | None:
        """Return what more than half of `watchers` hold now, or None. Votes of anybody else do not count."""
        votes = {watcher: self._votes[watcher] for watcher in watchers if watcher in self._votes}
        votes = {watcher: (vote, at) for watcher, (vote, at) in votes.items() if now - at <= _VALID_S}
        if 2 * len(votes) <= len(watchers):
            return None
        said = "; ".join(f"{watcher}: {vote.cause}: {vote.evidence}" for watcher, (vote, _) in votes.items())
        first, _ = next(iter(votes.values()))
        took_s = max(vote.took_s + now - at for vote, at in votes.values())
        return Elected(first.cause, f"{len(votes)} of {len(watchers)} sentinels: {said}", took_s)

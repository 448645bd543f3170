"""Which sentinels watch which node: rendezvous hashing, so that all of them agree without asking (design, section 5).

Pure. Who joins or leaves moves only its own nodes.
"""

from collections.abc import Iterable
from hashlib import blake2b


def watchers(node: str, sentinels: Iterable[str], count: int) -> tuple[str, ...]:
    """Return the `count` sentinels that watch `node` (all, if there are fewer), its primary first."""
    return tuple(sorted(sentinels, key=lambda sentinel: (_draw(node, sentinel), sentinel))[:count])


def _draw(node: str, sentinel: str) -> bytes:
    """A number no process may see differently, which Python's own hash is."""
    return blake2b(f"{node}\0{sentinel}".encode(), digest_size=8).digest()

"""Adapters: one module per inference engine, all behind `engines.base.Engine`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

    from engines.base import Engine

KINDS = ("llamacpp",)


def connect(kind: str, url: str, session: aiohttp.ClientSession) -> Engine:
    """Return the adapter for the engine of ``kind`` at ``url``; the caller keeps and closes ``session``.

    Opens no connection. Raises ValueError for an unknown kind.
    """
    if kind == "llamacpp":
        # Imported here: the engine process imports this package too, and must start fast.
        from engines.llamacpp import LlamaCpp

        return LlamaCpp(url, session)
    raise ValueError(f"kind: unknown engine kind {kind!r}; known kinds: {', '.join(KINDS)}")

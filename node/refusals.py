"""What the agent refuses to do with its engine, and why."""

from recovery.errors import UnbrokenError


class OldEngineRuns(UnbrokenError):
    """An engine of an older epoch still runs: reclaim it first."""


class NotServing(UnbrokenError):
    """No engine serves under this epoch."""


class NoLease(UnbrokenError):
    """The node's lease is not held: its engine may take no work before it is. Another try may find it held."""


class WarmUpFailed(UnbrokenError):
    """The engine serves but could not generate."""

"""Everything the rules refuse, as exceptions whose docstring is their default message.

UnbrokenError
├── SettingsError        a settings value is wrong
├── UnknownNode          no such node is registered
├── UnknownJob           no such job
├── StaleEpoch           the caller's epoch is not the node's
├── LeaseHeld            another agent holds the node's lease
├── StepLost             the step lease was lost to another worker
├── StepFailed           a step cannot succeed however often it is tried
│   └── OperatorNeeded   a step found something only a human may touch
├── StoreUnavailable     Redis did not answer in time
└── StoreUnsafe          Redis is configured in a way that loses state
"""


class UnbrokenError(Exception):
    """Unbroken refused this."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class SettingsError(UnbrokenError):
    """A settings value is wrong."""


class UnknownNode(UnbrokenError):
    """No such node is registered."""


class UnknownJob(UnbrokenError):
    """No such job."""


class StaleEpoch(UnbrokenError):
    """The epoch presented is not the node's current one."""

    def __init__(self, node: str, presented: int, current: int) -> None:
        super().__init__(f"node {node}: epoch {presented} is stale, current is {current}")
        self.node = node
        self.presented = presented
        self.current = current


class LeaseHeld(UnbrokenError):
    """Another agent holds this node's lease."""


class StepLost(UnbrokenError):
    """This worker's lease on the step is over; another one may be running it."""


class StepFailed(UnbrokenError):
    """The step cannot succeed however often it is tried."""


class OperatorNeeded(StepFailed):
    """Only a human may touch what the step found."""


class StoreUnavailable(UnbrokenError):
    """Redis did not answer in time."""


class StoreUnsafe(UnbrokenError):
    """Redis is configured in a way that loses state."""

"""What the rules' tests share: a process's logging put back as it was."""

import logging
from collections.abc import Generator

import pytest
import structlog


@pytest.fixture
def logging_as_it_was() -> Generator[None]:
    """Undo what `log.configure` does to a whole process: later tests must not log to this one's closed stderr."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)

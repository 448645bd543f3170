"""Lifeline: a robust mutex an engine holds for life, so that its death is seen before its memory is freed.

The kernel walks a dead thread's robust list first: the watcher wakes within milliseconds, pidfd and sockets later.
"""

import contextlib
import ctypes
import enum
import errno
import mmap
import os
import sys
import threading
import time
from pathlib import Path

_SIZE = 4096
_PROCESS_SHARED = 1
_ROBUST = 1
_SLICE = 0.2
"""Seconds between looks at the stop flag; a death wakes the watcher at once all the same."""
_HOLD_POLL = 0.01
"""Seconds between looks while nobody holds the mutex yet."""

_libc = ctypes.CDLL(None, use_errno=True)
_held: list[mmap.mmap] = []


class LifelineUnsupportedError(OSError):
    """This platform has no robust process-shared mutexes; watch the process by pidfd or wait instead."""


class Fate(enum.Enum):
    """What became of the holder."""

    DIED = "died"
    """Its thread ended, or called exec, with the mutex held."""
    UNLOCKED = "unlocked"
    """It gave the mutex back while alive."""
    STOPPED = "stopped"
    """Nothing happened to it: the watcher was told to stop, or its timeout passed."""


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def create(path: Path) -> None:
    """Make a fresh lifeline file at ``path`` (best on tmpfs), replacing one left by an earlier engine.

    Raises LifelineUnsupportedError where robust mutexes are missing (macOS).
    """
    _require_support()
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        shared = _map(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        mutex = _address(shared)
        attributes = ctypes.create_string_buffer(64)
        _check(_libc.pthread_mutexattr_init(attributes))
        _check(_libc.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED))
        _check(_libc.pthread_mutexattr_setrobust(attributes, _ROBUST))
        _check(_libc.pthread_mutex_init(mutex, attributes))
        _check(_libc.pthread_mutexattr_destroy(attributes))
        shared.flush()
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def hold(path: Path, timeout: float = 5.0) -> None:
    """Lock the lifeline at ``path`` for the rest of this process's life.

    Call it from the main thread (the lock dies with its thread), after the last exec (exec lets go of it).
    Raises TimeoutError when another process keeps it for ``timeout`` seconds.
    """
    _require_support()
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a lifeline must be held by the main thread: it dies with the thread that locked it")
    shared = _map(path, os.O_RDWR)
    mutex = _address(shared)
    code = _lock(mutex, timeout)
    if code == errno.ETIMEDOUT:
        raise TimeoutError(f"lifeline {path} is held by another process")
    if code == errno.EOWNERDEAD:
        code = _libc.pthread_mutex_consistent(mutex)
    _check(code)
    _held.append(shared)  # the mapping must outlive this call: unmapped, the kernel could not find the mutex


def is_held(path: Path) -> bool:
    """Whether a living process holds the lifeline at ``path`` now."""
    shared = _map(path, os.O_RDWR)
    return _try(_address(shared)) is None


def wait_for_death(path: Path, stop: threading.Event, timeout: float | None = None) -> Fate:
    """Block this thread until the holder of ``path`` dies or lets go, ``stop`` is set, or ``timeout`` s pass.

    Waits first for somebody to hold it, so it may start before the engine does. Run it in a thread of
    its own; ``stop`` is looked at every 0.2 s.
    """
    _require_support()
    shared = _map(path, os.O_RDWR)
    mutex = _address(shared)
    end = None if timeout is None else time.monotonic() + timeout
    while (fate := _try(mutex)) is Fate.UNLOCKED:
        if stop.wait(_HOLD_POLL) or _passed(end):
            return Fate.STOPPED
    while fate is None:
        if stop.is_set() or _passed(end):
            return Fate.STOPPED
        fate = _settle(mutex, _lock(mutex, _SLICE if end is None else min(_SLICE, end - time.monotonic())))
    return fate


def _try(mutex: ctypes.c_void_p) -> Fate | None:
    return _settle(mutex, _libc.pthread_mutex_trylock(mutex))


def _settle(mutex: ctypes.c_void_p, code: int) -> Fate | None:
    """Give back what was locked and say what the lock's return code means; None: still held."""
    if code in (errno.EBUSY, errno.ETIMEDOUT):
        return None
    if code == errno.EOWNERDEAD:
        _check(_libc.pthread_mutex_consistent(mutex))
        _check(_libc.pthread_mutex_unlock(mutex))
        return Fate.DIED
    _check(code)
    _check(_libc.pthread_mutex_unlock(mutex))
    return Fate.UNLOCKED


def _lock(mutex: ctypes.c_void_p, timeout: float) -> int:
    """Lock with a bound; ctypes lets the interpreter go on meanwhile."""
    monotonic = hasattr(_libc, "pthread_mutex_clocklock")
    until = (time.monotonic() if monotonic else time.time()) + max(timeout, 0.0)
    seconds = int(until)
    limit = ctypes.byref(_Timespec(seconds, int((until - seconds) * 1e9)))
    if monotonic:
        return int(_libc.pthread_mutex_clocklock(mutex, time.CLOCK_MONOTONIC, limit))
    return int(_libc.pthread_mutex_timedlock(mutex, limit))


def _map(path: Path, flags: int) -> mmap.mmap:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        if flags & os.O_CREAT:
            os.ftruncate(fd, _SIZE)
        return mmap.mmap(fd, _SIZE)
    finally:
        os.close(fd)


def _address(shared: mmap.mmap) -> ctypes.c_void_p:
    mutex = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(shared)))
    with contextlib.suppress(AttributeError):
        mutex._keep = shared  # type: ignore[attr-defined]  # noqa: SLF001 - unmapped under a waiter, it would crash
    return mutex


def _passed(end: float | None) -> bool:
    return end is not None and time.monotonic() >= end


def _require_support() -> None:
    if not (sys.platform.startswith("linux") and hasattr(_libc, "pthread_mutexattr_setrobust")):
        raise LifelineUnsupportedError(
            errno.ENOSYS, "no robust process-shared mutexes on this platform: watch the process by pidfd or wait"
        )


def _check(code: int) -> None:
    if code != 0:
        raise OSError(code, os.strerror(code))

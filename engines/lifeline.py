"""Lifeline: a robust mutex an engine holds for life, so that its death is seen before its memory is freed.

The kernel walks a dead thread's robust list first: the watcher wakes within milliseconds, pidfd and sockets later.
"""

from __future__ import annotations  # engines bring Pythons of their own, and each loads this file (`engines/hook`)

import contextlib
import ctypes
import enum
import errno
import mmap
import os
import struct
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

_HOLDER = struct.Struct("=q")
_HOLDER_AT = 1024
"""Where the holder writes its pid, well past any platform's mutex."""

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

    Each engine process needs a fresh one. Raises LifelineUnsupportedError where robust mutexes are
    missing (macOS).
    """
    _require_support()
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        shared = _map(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        attributes = ctypes.create_string_buffer(64)
        _check(_libc.pthread_mutexattr_init(attributes))
        _check(_libc.pthread_mutexattr_setpshared(attributes, _PROCESS_SHARED))
        _check(_libc.pthread_mutexattr_setrobust(attributes, _ROBUST))
        _check(_libc.pthread_mutex_init(_mutex(shared), attributes))
        _check(_libc.pthread_mutexattr_destroy(attributes))
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def hold(path: Path, timeout: float = 5.0) -> None:
    """Lock the lifeline at ``path`` for the rest of this process's life.

    Call it from the main thread (the lock dies with its thread), after the last exec (exec lets go of it).
    Raises TimeoutError when another process keeps it for ``timeout`` seconds, OSError when its holder
    has died: a dead lifeline stays dead, so that each watcher learns of it.
    """
    _require_support()
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("a lifeline must be held by the main thread: it dies with the thread that locked it")
    shared = _map(path, os.O_RDWR)
    code = _lock(_mutex(shared), timeout)
    if code == errno.ETIMEDOUT:
        raise TimeoutError(f"lifeline {path} is held by another process")
    if _settle(_mutex(shared), code, keep=True) is Fate.DIED:
        raise OSError(errno.EOWNERDEAD, f"the holder of lifeline {path} died: create a fresh one")
    _HOLDER.pack_into(shared, _HOLDER_AT, os.getpid())
    _held.append(shared)  # the mapping must outlive this call: unmapped, the kernel could not find the mutex


def hold_own(folder: Path) -> None:
    """Make and hold this process's lifeline in ``folder``, under its pid; its forked children get theirs.

    Robust lists are not inherited: without its own a child's death would go unseen. Raises as `create` and `hold`.
    """
    _take_own(folder)
    os.register_at_fork(after_in_child=lambda: _take_own_again(folder))


def is_held(path: Path) -> bool:
    """Whether a living process holds the lifeline at ``path`` now."""
    shared = _map(path, os.O_RDWR)
    mutex = _mutex(shared)
    return _taken(shared) and _settle(mutex, _libc.pthread_mutex_trylock(mutex)) is None


def wait_for_death(path: Path, stop: threading.Event, timeout: float | None = None) -> Fate:
    """Block this thread until the holder of ``path`` dies or lets go, ``stop`` is set, or ``timeout`` s pass.

    Waits first for somebody to hold it, so it may start before the engine does. Run it in a thread of
    its own; ``stop`` is looked at every 0.2 s. Any number of watchers learn of the same death.
    """
    _require_support()
    shared = _map(path, os.O_RDWR)
    mutex = _mutex(shared)
    end = None if timeout is None else time.monotonic() + timeout
    # By the mark, not by trying the lock: another's short try would look like a holder.
    while not _taken(shared):
        if stop.wait(_HOLD_POLL) or _passed(end):
            return Fate.STOPPED
    fate: Fate | None = None
    while fate is None:
        if stop.is_set() or _passed(end):
            return Fate.STOPPED
        fate = _settle(mutex, _lock(mutex, _SLICE if end is None else min(_SLICE, end - time.monotonic())))
    return fate


def _take_own(folder: Path) -> None:
    path = folder / str(os.getpid())
    create(path)
    hold(path)


def _take_own_again(folder: Path) -> None:
    _held.clear()  # the parent's
    # The child must not suffer: its death is then seen by other means.
    with contextlib.suppress(OSError, RuntimeError):
        _take_own(folder)


def _settle(mutex: ctypes.c_void_p, code: int, *, keep: bool = False) -> Fate | None:
    """Say what a lock's return code means, giving back what was locked unless ``keep``; None: still held."""
    if code in (errno.EBUSY, errno.ETIMEDOUT):
        return None
    if code == errno.ENOTRECOVERABLE:
        return Fate.DIED
    if code == errno.EOWNERDEAD:
        # Given back without pthread_mutex_consistent it is unrecoverable: the next watcher sees that.
        _check(_libc.pthread_mutex_unlock(mutex))
        return Fate.DIED
    _check(code)
    if not keep:
        _check(_libc.pthread_mutex_unlock(mutex))
    return Fate.UNLOCKED


def _taken(shared: mmap.mmap) -> bool:
    """Whether somebody has ever taken hold."""
    return bool(_HOLDER.unpack_from(shared, _HOLDER_AT)[0])


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


def _mutex(shared: mmap.mmap) -> ctypes.c_void_p:
    """Return the mutex's address, good as long as ``shared`` is referenced."""
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(shared)))


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

"""Which processes of an engine it cannot live without: those of its tree when it became ready, less known helpers.

Processes that come later (compilers, nvidia-smi, tokenizers' pools) come and go as they like.
"""

from pathlib import Path

from node import processes
from node.processes import Identity

_TRACKER = b"from multiprocessing.resource_tracker import main"
_FORKSERVER = b"from multiprocessing.forkserver import main"
_COMPILE_POOL = b"torch/_inductor/compile_worker"
"""Ends its workers by itself once it has been idle for a while."""
_PASSING = frozenset({"nvidia-smi", "ninja", "nvcc", "cicc", "ptxas", "cudafe++", "gcc", "g++", "cc1", "cc1plus", "as"})
"""Names of programs engines run to compile kernels or to look at devices."""

_GPU_DRIVERS = (b"libcuda.so", b"libamdhip64.so", b"libze_loader.so")


def essential(root: Identity) -> set[Identity]:
    """Return the processes of `root`'s tree whose death is the engine's, itself included. Reads /proc."""
    tree = {identity.pid: identity for identity in processes.tree(root)}
    commands = {pid: _command(pid) for pid in tree}
    stats = {pid: processes.read(pid) for pid in tree}
    parents = {pid: stat.parent for pid, stat in stats.items() if stat is not None}
    found = set()
    for pid, identity in tree.items():
        stat = stats[pid]
        if stat is None or stat.started != identity.started:
            continue
        # Workers a fork server has made keep its command line; they count, it does not.
        served = _FORKSERVER in commands.get(parents[pid], b"")
        helper = _TRACKER in commands[pid] or (_FORKSERVER in commands[pid] and not served) or stat.name in _PASSING
        if pid == root.pid or not (helper or _under_compile_pool(pid, parents, commands)):
            found.add(identity)
    return found


def uses_gpu(root: Identity) -> bool:
    """Whether a process of `root`'s tree has loaded a GPU's driver library: else the model runs on the CPU."""
    maps = (_read(one.pid, "maps") for one in processes.tree(root))
    return any(driver in text for text in maps for driver in _GPU_DRIVERS)


def _under_compile_pool(pid: int, parents: dict[int, int], commands: dict[int, bytes]) -> bool:
    for _ in range(len(parents)):  # parents of a tree: never longer
        if pid not in parents:
            return False
        if _COMPILE_POOL in commands[pid]:
            return True
        pid = parents[pid]
    return False


def _command(pid: int) -> bytes:
    return _read(pid, "cmdline").replace(b"\0", b" ")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""

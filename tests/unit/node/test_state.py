"""The agent's state directory: one owner, atomic writes, an epoch floor that never sinks."""

import json
from pathlib import Path

import pytest

from node.state import NodeDir, NodeOwned, Record, StateDamaged, write_atomically
from recovery.errors import SettingsError

ENGINE = Record(pid=4711, started=99, pgid=4711, epoch=3, url="http://127.0.0.1:1", lifeline="/dev/shm/x")


def test_state_and_holder_survive_a_new_owner(tmp_path: Path) -> None:
    """A restarted agent is the same holder and knows its engine and floor."""
    first = NodeDir.open(tmp_path, "a")
    first.raise_floor(3)
    first.record(ENGINE)
    first.close()

    second = NodeDir.open(tmp_path, "a")
    try:
        assert (second.holder, second.floor, second.engine) == (first.holder, 3, ENGINE)
    finally:
        second.close()


def test_the_floor_never_goes_back(tmp_path: Path) -> None:
    """A lower epoch changes nothing, in memory and on disk."""
    home = NodeDir.open(tmp_path, "a")
    try:
        home.raise_floor(8)
        home.raise_floor(7)
        home.record(None)

        assert home.floor == 8
        assert json.loads((home.path / "state.json").read_text())["floor"] == 8
    finally:
        home.close()


def test_a_second_owner_is_refused_and_told_who_owns_it(tmp_path: Path) -> None:
    """The lock file holds the owner's pid for the message."""
    home = NodeDir.open(tmp_path, "a")
    try:
        with pytest.raises(NodeOwned, match=r"node a: the agent with pid \d+ owns .*nodes/a; stop it"):
            NodeDir.open(tmp_path, "a")
    finally:
        home.close()


def test_the_lock_file_is_never_recreated(tmp_path: Path) -> None:
    """A new inode would give two owners."""
    NodeDir.open(tmp_path, "a").close()
    inode = (tmp_path / "nodes/a/owner.lock").stat().st_ino
    NodeDir.open(tmp_path, "a").close()

    assert (tmp_path / "nodes/a/owner.lock").stat().st_ino == inode


def test_a_crash_while_writing_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rename is the only moment of change."""
    path = tmp_path / "state.json"
    write_atomically(path, b"old")

    def crash(_fd: int) -> None:
        raise OSError("power cut")

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(OSError, match="power cut"):
        write_atomically(path, b"new")

    assert path.read_bytes() == b"old"


def test_a_failed_write_does_not_change_the_state_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not on disk was not promised."""
    home = NodeDir.open(tmp_path, "a")
    try:
        home.raise_floor(1)

        def full(_path: Path, _content: bytes) -> None:
            raise OSError("disk full")

        monkeypatch.setattr("node.state.write_atomically", full)
        with pytest.raises(OSError, match="disk full"):
            home.raise_floor(2)

        assert home.floor == 1
    finally:
        home.close()


def test_a_damaged_state_file_is_refused(tmp_path: Path) -> None:
    """To go on without the floor could revive a fenced epoch."""
    NodeDir.open(tmp_path, "a").close()
    (tmp_path / "nodes/a/state.json").write_text('{"floor":')

    with pytest.raises(StateDamaged, match=r"state\.json"):
        NodeDir.open(tmp_path, "a")
    (tmp_path / "nodes/a/state.json").unlink()
    NodeDir.open(tmp_path, "a").close()  # the refusal has given the lock back


@pytest.mark.parametrize("node", ["", "../b", "a/b", ".a", "a b", "x" * 65, "a:1"])
def test_a_node_id_that_is_no_plain_name_is_refused(tmp_path: Path, node: str) -> None:
    """It becomes a folder, a key and part of the epoch mark."""
    with pytest.raises(SettingsError, match=r"node\.id"):
        NodeDir.open(tmp_path, node)

"""The table of Xids: what a code means for the node."""

import pytest

from node.gpu.xids import XIDS, Meaning, explain, fatal


@pytest.mark.parametrize("code", [46, 62, 64, 79, 95, 119, 120, 140, 143])
def test_a_gpu_that_needs_a_reset_is_lost_whatever_else_the_driver_says(code: int) -> None:
    """No engine on it can go on."""
    assert fatal(code, driver_tells=True)
    assert fatal(code, driver_tells=False)


@pytest.mark.parametrize("code", [13, 31, 32, 43, 45, 68, 69, 94])
def test_what_ends_a_process_loses_no_gpu(code: int) -> None:
    """A restart is right there, and its own detection sees the death."""
    assert explain(code).meaning is Meaning.PROCESS
    assert not fatal(code, driver_tells=False)


@pytest.mark.parametrize("code", [37, 61, 63, 92, 121, 157])
def test_a_note_changes_nothing(code: int) -> None:
    """It is told and that is all."""
    assert explain(code).meaning is Meaning.NOTE
    assert not fatal(code, driver_tells=False)


def test_the_driver_s_own_word_outranks_the_table_where_it_gives_one() -> None:
    """A double bit error may be contained, an NVLink error corrected: the recovery action tells."""
    assert fatal(48, driver_tells=False)
    assert not fatal(48, driver_tells=True)
    for code in (74, 109, 144, 149, 154):
        assert explain(code).driver_decides
        assert not fatal(code, driver_tells=False)


def test_a_code_nobody_knows_is_no_death() -> None:
    """Newer drivers have newer codes."""
    assert 9_999 not in XIDS
    assert not fatal(9_999, driver_tells=False)
    assert "not in our table" in explain(9_999).name


def test_rows_stand_under_their_code() -> None:
    """No row was written twice."""
    assert all(code == row.code and row.name for code, row in XIDS.items())

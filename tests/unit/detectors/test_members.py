"""Who counts as a living sentinel: what Redis shows, unless Redis itself was the one that forgot."""

from detectors.members import MEMBER_S, Roll


def roll(*living: str) -> Roll:
    """Return a roll that knows these for long."""
    known = Roll()
    known.read(living, 0.0, lost=False)
    return known


def test_one_that_redis_shows_no_more_is_gone() -> None:
    """Its membership lapsed, or it left."""
    known = roll("s1", "s2")
    known.read(["s1"], 10.0, lost=False)
    assert list(known.living) == ["s1"]


def test_the_last_membership_stays_while_redis_is_away_and_until_all_could_renew() -> None:
    """All memberships lapsed meanwhile; whoever renews first must not believe itself alone."""
    known = roll("s1", "s2")
    known.away()
    assert list(known.living) == ["s1", "s2"]
    known.read(["s1"], 40.0, lost=False)
    assert list(known.living) == ["s1", "s2"]
    known.read(["s1"], 40.1 + MEMBER_S, lost=False)
    assert list(known.living) == ["s1"]


def test_a_redis_that_lost_our_own_entry_has_lost_the_others_too() -> None:
    """It was emptied, or restarted, between two renewals."""
    known = roll("s1", "s2")
    known.read(["s1"], 10.0, lost=True)
    assert list(known.living) == ["s1", "s2"]
    known.read(["s1", "s3"], 10.5, lost=False)
    assert list(known.living) == ["s1", "s2", "s3"]
    known.read(["s1", "s3"], 10.1 + MEMBER_S, lost=False)
    assert list(known.living) == ["s1", "s3"]

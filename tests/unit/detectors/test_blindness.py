"""Links that vanish together blind the sentinel; single ones do not."""

from detectors.blindness import Blindness


def test_all_links_gone_within_a_second_is_blindness() -> None:
    """The fault is more likely ours."""
    sight = Blindness()
    sight.up("a")
    sight.up("b")
    sight.lost("a", 10.0)
    sight.lost("b", 10.8)
    assert sight.blind


def test_the_first_link_that_is_back_ends_blindness() -> None:
    """From then on the others' silence is their own."""
    sight = Blindness()
    sight.lost("a", 10.0)
    sight.lost("b", 10.8)
    sight.up("a")
    assert not sight.blind


def test_links_lost_one_after_another_are_real_losses() -> None:
    """More than a second apart."""
    sight = Blindness()
    sight.up("a")
    sight.up("b")
    sight.lost("a", 10.0)
    sight.lost("b", 12.0)
    assert not sight.blind


def test_repeated_looks_at_a_lost_link_do_not_move_its_time() -> None:
    """It was lost once."""
    sight = Blindness()
    sight.up("b")
    for second in range(5):
        sight.lost("a", float(second))
    sight.lost("b", 5.0)
    assert not sight.blind


def test_a_single_node_cannot_blind() -> None:
    """There is nothing to compare it with."""
    sight = Blindness()
    sight.lost("a", 1.0)
    assert not sight.blind


def test_a_link_that_was_expected_to_end_is_no_sign() -> None:
    """Its node stopped, or a job has it."""
    sight = Blindness()
    sight.up("a")
    sight.up("b")
    sight.forget("a")
    sight.lost("b", 1.0)
    assert not sight.blind


def _sight(up: int) -> Blindness:
    sight = Blindness()
    for number in range(up):
        sight.up(f"node-{number}")
    return sight


def test_most_links_gone_together_is_blindness_for_a_while_only() -> None:
    """Three of four within a second; as the fourth answers on, the others are really gone."""
    sight = _sight(4)
    for number in range(3):
        sight.lost(f"node-{number}", 10.0 + number / 10)
    assert sight.blind
    sight.lost("node-0", 14.0)
    assert sight.blind
    sight.lost("node-0", 15.5)
    assert not sight.blind


def test_fewer_than_most_are_real_losses() -> None:
    """Two of four."""
    sight = _sight(4)
    sight.lost("node-0", 10.0)
    sight.lost("node-1", 10.1)
    assert not sight.blind


def test_the_nodes_of_one_host_count_once() -> None:
    """A host with eight engines that goes is one loss beside a host that stays."""
    sight = Blindness()
    for number in range(8):
        sight.up(f"a-{number}", "host-a")
    sight.up("b-0", "host-b")
    for number in range(8):
        sight.lost(f"a-{number}", 10.0, "host-a")
    assert not sight.blind

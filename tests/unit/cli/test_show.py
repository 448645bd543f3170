"""How nodes look on a terminal."""

import io
from typing import Any

from rich.console import Console

from api.views import node_view
from cli.show import print_nodes
from recovery.registry import Node, NodeState


def _shown(*nodes: Node, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    views: list[dict[str, Any]] = [node_view(node) for node in nodes]
    print_nodes(console, views)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_node_is_shown_with_its_state_its_figures_and_the_reason() -> None:
    """All that an operator needs to understand a routing decision, with units, on a narrow terminal."""
    node = Node(
        "gpu-17", 7, NodeState.PROBATION, 0.03, score=4.25, free_ratio=0.9, rtt_us=412.0, ewma_us=398.0,
        baseline_us=390.0, running=2, waiting=1, slots=8, job="gpu-17.6", cause="hang", why="probe passed",
        detail="llama [1] says", gpu="OK",
    )  # fmt: skip
    shown = _shown(node)
    for words in (
        "gpu-17", "PROBATION", " 7 ", "3%", "µs", "412 (398, 390)", "90%", "2+1/8", "gpu-17.6", "OK",
        "gpu-17: hang; probe passed; llama [1] says",
    ):  # fmt: skip
        assert words in shown


def test_no_gpu_column_where_no_node_has_one() -> None:
    """A laptop's table stays narrow; a reason that is said twice is shown once."""
    shown = _shown(Node("a", 1, NodeState.ALIVE, 1.0, why="same", detail="same", slots=4))
    assert "gpu" not in shown
    assert shown.count("same") == 1

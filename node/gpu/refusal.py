"""The refusal to start an engine on a GPU that is lost."""

from node.launcher import StartFailed


class GpuLost(StartFailed):
    """The node's GPU is lost: no start can bring it back."""

    def __init__(self, node: str, evidence: str) -> None:
        super().__init__(
            f"{evidence}; no engine is started on it: reset the GPU or reboot the host, then `unbroken recover {node}`"
        )

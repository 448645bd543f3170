"""What each Xid, the NVIDIA driver's error code in its events, means for a node (requirements D11).

From NVIDIA's catalogue, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html: code, mnemonic, immediate action.
"""

from dataclasses import dataclass
from enum import Enum


class Meaning(Enum):
    """What follows for the node."""

    GPU = "the GPU needs a reset or the host a reboot"
    """An engine on it is as good as dead, and another one would be, too."""
    PROCESS = "the process must start anew; the GPU is well"
    """Its death or its standing still is seen by other means, and then a restart is right."""
    NOTE = "nothing to do now"


@dataclass(frozen=True, slots=True)
class Xid:
    """One row of the table."""

    code: int
    name: str
    meaning: Meaning
    driver_decides: bool = False
    """A driver that tells its recovery action is to be believed instead; `meaning` is for those that do not."""


_GPU, _PROCESS, _NOTE = Meaning.GPU, Meaning.PROCESS, Meaning.NOTE

XIDS: dict[int, Xid] = {
    row.code: row
    for row in (
        Xid(8, "GPU stopped processing (idle timeout)", _PROCESS),
        Xid(11, "invalid or corrupted push buffer stream", _PROCESS),
        Xid(13, "graphics engine exception", _PROCESS),
        Xid(25, "invalid or illegal push buffer stream", _PROCESS),
        Xid(31, "GPU memory page fault", _PROCESS),
        Xid(32, "invalid or corrupted push buffer stream (PBDMA)", _PROCESS),
        Xid(37, "driver firmware error", _NOTE),
        Xid(38, "driver firmware error (watchdog)", _NOTE),
        Xid(39, "copy engine exception", _PROCESS),
        Xid(40, "copy engine exception", _PROCESS),
        Xid(41, "copy engine exception", _PROCESS),
        # The catalogue says IGNORE: the GPU is well, the program that met a software fault ends.
        Xid(43, "GPU stopped processing for a program (reset channel)", _PROCESS),
        Xid(44, "graphics engine fault during context switch", _NOTE),
        Xid(45, "preemptive clean-up after an earlier error", _PROCESS),
        Xid(46, "GPU stopped processing (timeout)", _GPU),
        # Contained (then 94 comes, too) a restart is enough; older GPUs contain nothing.
        Xid(48, "double bit ECC error", _GPU, driver_decides=True),
        Xid(54, "auxiliary power is not connected", _NOTE),
        Xid(60, "video processor exception", _PROCESS),
        Xid(61, "internal micro-controller breakpoint", _NOTE),
        Xid(62, "internal micro-controller halt", _GPU),
        Xid(63, "memory remapping event", _NOTE),
        Xid(64, "memory remapping failure", _GPU),
        Xid(66, "illegal access by driver", _NOTE),
        Xid(67, "illegal access by driver", _NOTE),
        Xid(68, "NVDEC0 exception", _PROCESS),
        Xid(69, "graphics engine class error", _PROCESS),
        Xid(70, "copy engine 3 error", _PROCESS),
        Xid(71, "copy engine 4 error", _PROCESS),
        Xid(72, "copy engine 5 error", _PROCESS),
        # Fatal or not is in register bits the event does not carry.
        Xid(74, "NVLink error", _NOTE, driver_decides=True),
        Xid(78, "vGPU start error", _NOTE),
        Xid(79, "GPU has fallen off the bus", _GPU),
        Xid(80, "corrupted data sent to GPU", _PROCESS),
        Xid(92, "high single-bit ECC error rate", _NOTE),
        Xid(93, "InfoROM wear limit", _NOTE),
        Xid(94, "contained memory error", _PROCESS),
        Xid(95, "uncontained memory error", _GPU),
        # A reset says the catalogue; drivers that do not tell report it for programs that time out as well.
        Xid(109, "context switch timeout", _PROCESS, driver_decides=True),
        Xid(110, "security fault", _GPU),
        Xid(119, "GSP RPC timeout", _GPU),
        Xid(120, "GSP error", _GPU),
        Xid(121, "C2C link error", _NOTE),
        Xid(136, "NVLink training failed", _GPU, driver_decides=True),
        Xid(137, "NVLink privilege error", _NOTE),
        Xid(140, "unrecovered ECC error", _GPU),
        Xid(141, "CUDA fast path error", _NOTE),
        Xid(143, "GPU initialization error", _GPU),
        Xid(144, "NVLink SAW error", _NOTE, driver_decides=True),
        Xid(145, "NVLink RLW error", _NOTE, driver_decides=True),
        Xid(146, "NVLink TLW error", _NOTE, driver_decides=True),
        Xid(147, "NVLink TREX error", _NOTE, driver_decides=True),
        Xid(148, "NVLink NVLPW_CTRL error", _NOTE, driver_decides=True),
        Xid(149, "NVLink NETIR error", _NOTE, driver_decides=True),
        Xid(150, "NVLink MSE error", _NOTE, driver_decides=True),
        Xid(154, "GPU recovery action changed", _NOTE, driver_decides=True),
        Xid(155, "NVLink software defined error", _GPU, driver_decides=True),
        Xid(156, "resource retirement event", _GPU, driver_decides=True),
        Xid(157, "resource retirement failure", _NOTE),
        Xid(158, "GPU fatal timeout", _GPU),
        Xid(160, "channel retirement event", _NOTE),
        Xid(161, "channel retirement failure", _NOTE),
        Xid(171, "uncorrectable DRAM error (details of 48)", _NOTE),
        Xid(172, "uncorrectable SRAM error (details of 48)", _NOTE),
    )
}
"""Code → row; a code that is not here is a note."""


def explain(code: int) -> Xid:
    """Return what is known of a code."""
    return XIDS.get(code) or Xid(code, "not in our table", Meaning.NOTE)


def fatal(code: int, *, driver_tells: bool) -> bool:
    """Whether a GPU that reported `code` is lost; `driver_tells`: its driver makes its recovery action known."""
    row = explain(code)
    return row.meaning is Meaning.GPU and not (row.driver_decides and driver_tells)

"""Which GPUs are a node's."""

import pytest

from node.gpu.devices import select, visible, wanted
from node.gpu.reading import Device
from recovery.config import NodeSettings

GPUS = [Device(0, "GPU-aaaa"), Device(1, "GPU-bbbb"), Device(2, "GPU-cccc")]
SLICES = [Device(0, "MIG-1111", "GPU-aaaa", 3), Device(0, "MIG-2222", "GPU-aaaa", 4), Device(1, "GPU-bbbb")]


def chosen(devices: list[Device], names: list[str] | None) -> list[str]:
    """Return the titles of what was selected; nothing may be missing."""
    found, missing = select(devices, names, {})
    assert missing == []
    return [device.title for device in found]


def test_settings_come_first_then_the_environment_then_all() -> None:
    """An engine of its own command may use any GPU it can see."""
    own = NodeSettings(command=["serve"])
    assert wanted(own, {}) is None
    assert wanted(own, {"CUDA_VISIBLE_DEVICES": "1,GPU-aaaa"}) == ["1", "GPU-aaaa"]
    assert wanted(NodeSettings(command=["serve"], devices=["2"]), {"CUDA_VISIBLE_DEVICES": "1"}) == ["2"]


def test_llama_cpp_on_the_cpu_has_no_gpu_unless_told() -> None:
    """A GPU that dies beside it must not cost a node that never used it."""
    assert wanted(NodeSettings(), {"CUDA_VISIBLE_DEVICES": "0"}) == []
    assert wanted(NodeSettings(devices=["0"]), {}) == ["0"]


@pytest.mark.parametrize(
    ("value", "names"),
    [(None, None), ("", []), ("0", ["0"]), ("0, 2", ["0", "2"]), ("1,-1,0", ["1"]), ("MIG-11,x", ["MIG-11"])],
)
def test_the_variable_means_what_it_means_to_cuda(value: str | None, names: list[str] | None) -> None:
    """Unset is all, empty is none, and from the first invalid entry on nothing counts."""
    assert visible(value) == names


def test_devices_are_named_by_index_by_uuid_or_by_its_beginning() -> None:
    """Order is the driver's; none is taken twice."""
    assert chosen(GPUS, None) == ["GPU-aaaa", "GPU-bbbb", "GPU-cccc"]
    assert chosen(GPUS, ["2", "GPU-aaaa"]) == ["GPU-cccc", "GPU-aaaa"]
    assert chosen(GPUS, ["gpu-bb", "1"]) == ["GPU-bbbb"]
    assert select(GPUS, ["7", "GPU-dddd"], {}) == ([], ["7", "GPU-dddd"])


def test_slices_are_devices_of_their_own() -> None:
    """A slice's UUID means that slice only; its GPU's name means all of them."""
    assert chosen(SLICES, ["MIG-2222"]) == ["MIG-2222"]
    assert chosen(SLICES, ["MIG-GPU-aaaa/3/0"]) == ["MIG-1111"]
    assert chosen(SLICES, ["GPU-aaaa"]) == ["MIG-1111", "MIG-2222"]
    assert chosen(SLICES, ["1"]) == ["GPU-bbbb"]


def test_a_lost_gpu_is_known_by_the_place_where_it_was_seen() -> None:
    """It no longer says who it is, and its neighbours are not taken for it."""
    lost = [Device(0, "GPU-aaaa"), Device(1, lost="GPU is lost"), Device(2, lost="GPU is lost")]
    places = {"GPU-aaaa": 0, "GPU-bbbb": 1, "GPU-cccc": 2}
    assert [device.index for device in select(lost, ["GPU-cccc"], places)[0]] == [2]
    assert [device.index for device in select(lost, ["GPU-aaaa"], places)[0]] == [0]
    # Never seen before: it can only be one of those.
    assert [device.index for device in select(lost, ["GPU-cccc"], {})[0]] == [1, 2]

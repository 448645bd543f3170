"""The reader over a fake NVML: what cannot be read is absent, and one GPU spoils nothing for the others."""

from typing import Any

import pytest

from node.gpu.reader import Reader
from node.gpu.reading import Device
from tests.rigs import fake_pynvml
from tests.rigs.fake_pynvml import FakeNvml, gpu


def devices(wanted: list[str] | None = None) -> list[Device]:
    """Read with a fresh reader."""
    reading = Reader(fake_pynvml).read(wanted)
    assert (reading.library, reading.detail) == ("ok", "")
    return reading.devices


def test_a_healthy_gpu_is_read_in_full(nvml: FakeNvml) -> None:
    """Memory, utilisation, temperature, ECC, processes, recovery action."""
    first, second = devices()
    assert (first.uuid, first.memory_total, first.memory_used) == (gpu(0)["uuid"], 80_000, 20_000)
    assert (first.utilisation, first.temperature_c, first.ecc_uncorrected) == (0.3, 40.0, 0)
    assert (first.pids, first.recovery, first.lost, first.failing, first.unknown) == ([4711], 0, "", False, {})
    assert (second.index, second.temperature_c) == (1, 41.0)


@pytest.mark.parametrize("where", ["handle", "uuid", "memory", "temperature"])
@pytest.mark.parametrize("error", ["GPU_IS_LOST", "RESET_REQUIRED"])
def test_one_lost_gpu_of_four_leaves_the_others_readable(nvml: FakeNvml, where: str, error: str) -> None:
    """Wherever the driver says so."""
    nvml.save(devices=[gpu(0), gpu(1), gpu(2, **{where: error}), gpu(3)])
    found = devices()
    assert [bool(device.lost) for device in found] == [False, False, True, False]
    assert [device.memory_total for device in found if not device.lost] == [80_000] * 3


def test_gpus_that_cannot_be_the_node_s_are_left_alone(nvml: FakeNvml) -> None:
    """A question to a broken neighbour may hang."""
    assert [device.index for device in devices(["1"])] == [1]


def test_what_is_not_supported_is_unknown_and_not_zero(nvml: FakeNvml) -> None:
    """And says why."""
    missing = dict.fromkeys(("utilisation", "temperature", "ecc", "pids", "recovery"), "NOT_SUPPORTED")
    nvml.save(devices=[gpu(0, **missing)])
    [device] = devices()
    figures = (device.utilisation, device.temperature_c, device.ecc_uncorrected, device.pids, device.recovery)
    assert figures == (None,) * 5
    assert set(device.unknown) == {"utilisation", "temperature", "ecc", "processes"}
    assert (device.memory_used, device.failing) == (20_000, False)


@pytest.mark.parametrize(
    "lie", [{"memory": [10, 99]}, {"memory": [0, 0]}, {"utilisation": 4_000}, {"temperature": 2**32 - 1},
            {"temperature": 0}, {"ecc": 2**64 - 1}],
)  # fmt: skip
def test_an_impossible_figure_is_unknown(nvml: FakeNvml, lie: dict[str, Any]) -> None:
    """Drivers send all bits set, or nonsense, for what they do not know."""
    nvml.save(devices=[gpu(0, **lie)])
    [device] = devices()
    known = {
        "memory": device.memory_total, "utilisation": device.utilisation, "temperature": device.temperature_c,
        "ecc": device.ecc_uncorrected,
    }  # fmt: skip
    assert {name for name, value in known.items() if value is None} == set(lie)


def test_unified_memory_is_the_host_s(nvml: FakeNvml) -> None:
    """The device is there and has no memory of its own."""
    nvml.save(devices=[gpu(0, memory="NOT_SUPPORTED")])
    [device] = devices()
    assert device.unified
    assert device.memory_total is not None
    assert device.memory_used is not None
    assert 0 < device.memory_used < device.memory_total
    assert device.memory_total > 2**28
    assert "unified memory" in device.remarks[0]


@pytest.mark.parametrize("mode", [1, "NO_PERMISSION"])
@pytest.mark.parametrize("parent", ["NO_PERMISSION", "NOT_SUPPORTED"])
def test_the_slices_of_a_gpu_are_read_where_it_cannot_be(nvml: FakeNvml, mode: Any, parent: str) -> None:
    """Each with its own memory; what a slice does not know is its GPU's, or unknown."""
    slices = [
        {"uuid": f"MIG-{each}", "name": "MIG 1g.18gb", "memory": [18_000, each], "instance": each} for each in (7, 8)
    ]
    nvml.save(devices=[gpu(0, memory=parent, utilisation=parent, mig=mode, slices=slices), gpu(1)])
    first, second, other = devices()
    assert (first.uuid, first.parent, first.instance, first.memory_used) == ("MIG-7", gpu(0)["uuid"], 7, 7)
    assert (second.memory_total, second.unified) == (18_000, False)
    assert (first.utilisation, first.temperature_c, first.failing) == (None, 40.0, False)
    assert (other.uuid, other.parent) == (gpu(1)["uuid"], "")


def test_a_sliced_gpu_without_a_visible_slice_has_unknown_memory(nvml: FakeNvml) -> None:
    """It is not taken for one with unified memory."""
    nvml.save(devices=[gpu(0, memory="NOT_SUPPORTED", slices=[])])
    [device] = devices()
    assert (device.unified, device.memory_total) == (False, None)


@pytest.mark.parametrize("error", ["LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED", "NOT_SUPPORTED"])
def test_a_host_without_a_driver_has_nothing_to_read(nvml: FakeNvml, error: str) -> None:
    """It is no error, now and later."""
    nvml.save(init=error)
    reader = Reader(fake_pynvml)
    assert [reader.read(None).library for _ in range(2)] == ["none", "none"]
    nvml.save(init="fine")
    assert reader.read(None).library == "ok"


def test_a_driver_that_only_errs_is_told_from_one_that_declines(nvml: FakeNvml) -> None:
    """Unknown on every call: the way to the GPU is lost, of which nothing else is known."""
    reader = Reader(fake_pynvml)
    assert reader.read(None).library == "ok"
    nvml.save(everything="UNKNOWN")
    assert (reader.read(None).library, reader.read(None).detail) == ("failing", "Unknown Error")
    fields = ("uuid", "name", "memory", "utilisation", "temperature", "ecc", "pids")
    nvml.save(everything="fine", devices=[gpu(0, **dict.fromkeys(fields, "UNKNOWN"))])
    assert [(device.failing, device.lost) for device in devices()] == [(True, "")]


def test_a_library_that_lost_its_beginning_is_begun_again(nvml: FakeNvml) -> None:
    """Uninitialized on a later call."""
    reader = Reader(fake_pynvml)
    reader.read(None)
    nvml.save(everything="UNINITIALIZED")
    assert reader.read(None).library == "failing"
    nvml.save(everything="fine")
    assert reader.read(None).library == "ok"

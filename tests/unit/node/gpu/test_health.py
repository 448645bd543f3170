"""What readings, silence and Xids make of a node's GPUs."""

from typing import Any

import pytest

from node.gpu.health import Health, State
from node.gpu.reading import Device, Reading, XidEvent


def device(index: int = 0, **changes: Any) -> Device:
    """Return a healthy GPU."""
    known: dict[str, Any] = {"memory_total": 80, "memory_used": 20, "temperature_c": 40.0, "ecc_uncorrected": 0}
    return Device(index, f"GPU-{index}", **known | changes)


def read(*devices: Device) -> Reading:
    """Return a reading of these."""
    return Reading("ok", devices=list(devices))


def healthy(wanted: list[str] | None = None, count: int = 1, **changes: Any) -> Health:
    """Return the health of a node whose GPUs were read well once."""
    health = Health(wanted)
    health.answer(read(*(device(index, **changes) for index in range(count))))
    assert health.state is State.OK
    return health


def xid(code: int, index: int = 0, instance: int | None = None) -> XidEvent:
    """Return an event."""
    return XidEvent(code, index, f"GPU-{index}", instance)


def test_a_lost_gpu_is_believed_when_it_is_read_twice() -> None:
    """One odd reading is none; the second one comes at once."""
    health = healthy()
    health.answer(read(device(lost="GPU is lost")))
    assert (health.state, health.doubtful) == (State.OK, True)
    health.answer(read(device()))
    assert (health.state, health.doubtful) == (State.OK, False)
    for _ in range(2):
        health.answer(read(device(lost="GPU is lost")))
    assert (health.state, health.detail) == (State.LOST, "GPU-0: GPU is lost")


def test_only_the_node_that_uses_the_lost_gpu_loses_it() -> None:
    """Three of four nodes on the host go on."""
    nodes = [healthy([f"GPU-{index}"], 4) for index in range(4)]
    for health in nodes:
        for _ in range(2):
            health.answer(read(device(0), device(1), Device(2, lost="GPU is lost"), device(3)))
    assert [health.state for health in nodes] == [State.OK, State.OK, State.LOST, State.OK]
    assert nodes[2].detail == "GPU-2: GPU is lost"


def test_errors_alone_are_no_death_and_end_by_themselves() -> None:
    """A container that lost its way to the driver: every call is an error while the engine goes on."""
    health = healthy()
    for _ in range(50):
        health.answer(Reading("failing", "Unknown Error"))
    assert (health.state, health.detail) == (State.TELEMETRY_LOST, "Unknown Error")
    for _ in range(2):
        health.answer(read(device(failing=True, unknown={"memory": "Unknown Error"})))
    assert (health.state, health.detail) == (State.TELEMETRY_LOST, "GPU-0: Unknown Error")
    health.answer(read(device()))
    assert health.state is State.OK


def test_a_host_without_a_gpu_is_none_but_one_that_had_one_is_not() -> None:
    """Libraries do not vanish: then it is the way to them that is broken."""
    health = Health()
    health.answer(Reading("none", "NVML Shared Library Not Found"))
    assert (health.state, health.detail) == (State.NONE, "NVML Shared Library Not Found")
    health = healthy()
    for _ in range(2):
        health.answer(Reading("none", "NVML Shared Library Not Found"))
    assert health.state is State.TELEMETRY_LOST


def test_a_device_that_is_named_but_not_there_is_told_and_kills_nothing() -> None:
    """A wrong name in the settings looks like this, too."""
    health = Health(["GPU-9"])
    for _ in range(2):
        health.answer(read(device()))
    assert (health.state, health.detail) == (State.TELEMETRY_LOST, "GPU-9: not there")


def test_the_second_silence_is_an_unresponsive_driver_and_an_answer_ends_it() -> None:
    """One late answer is none."""
    health = healthy()
    health.silence("no answer")
    assert health.state is State.OK
    health.answer(read(device()))
    health.silence("no answer")
    assert health.state is State.OK
    health.silence("no answer")
    assert (health.state, health.detail) == (State.DRIVER_UNRESPONSIVE, "no answer")
    health.answer(read(device()))
    assert health.state is State.OK


@pytest.mark.parametrize(("action", "state"), [(0, State.OK), (1, State.LOST), (2, State.LOST), (4, State.OK)])
def test_the_driver_s_recovery_action_counts(action: int, state: State) -> None:
    """A reset or a reboot ends every GPU process; after a drain running work goes on."""
    health = healthy()
    for _ in range(2):
        health.answer(read(device(recovery=action)))
    assert health.state is state
    if action == 4:
        assert "drain and reset" in health.detail


def test_a_fatal_xid_is_believed_at_once_and_only_by_those_it_concerns() -> None:
    """It is proof: no second look."""
    health, other = healthy(["0"], 2), healthy(["1"], 2)
    assert health.xid(xid(79))
    assert (health.state, "Xid 79" in health.detail) == (State.LOST, True)
    assert not other.xid(xid(79))
    assert other.state is State.OK


def test_an_xid_that_ends_a_process_or_says_little_leaves_the_gpu() -> None:
    """It is shown, the last ones of many."""
    health = healthy()
    for code in (31, 13, 43, 63, 94):
        health.xid(xid(code))
    health.answer(read(device()))
    assert (health.state, "Xid 94" in health.detail, "Xid 31" in health.detail) == (State.OK, True, False)


def test_an_xid_of_one_slice_is_none_of_its_neighbour_s() -> None:
    """What concerns the whole GPU concerns all of its slices."""

    def slices(**changes: Any) -> list[Device]:
        return [Device(0, f"MIG-{each}", "GPU-0", each, memory_total=8, memory_used=1) for each in (3, 4)]

    nodes = [Health(["MIG-3"]), Health(["MIG-4"])]
    for health in nodes:
        health.answer(read(*slices()))
        health.xid(xid(95, instance=4))
    assert [health.state for health in nodes] == [State.OK, State.LOST]
    nodes[0].xid(xid(79))
    assert nodes[0].state is State.LOST


def test_an_xid_before_the_first_reading_is_not_forgotten() -> None:
    """Events begin to flow while the first answer is still on its way."""
    health = Health()
    health.xid(xid(79))
    health.answer(read(device()))
    assert health.state is State.LOST


def test_a_loss_ends_when_the_gpu_was_seen_broken_and_is_well_again() -> None:
    """The uncorrected errors of a fault are gone: somebody has reset the GPU."""
    health = healthy()
    health.xid(xid(95))
    states = []
    for errors in (2, 2, 0, 0):
        health.answer(read(device(ecc_uncorrected=errors)))
        states.append(health.state)
    assert states == [State.LOST, State.LOST, State.LOST, State.OK]


def test_a_gpu_that_merely_reads_well_after_a_fatal_xid_stays_lost() -> None:
    """Figures come from a broken GPU as well; nothing shows that it was reset."""
    health = healthy()
    health.xid(xid(119))
    for _ in range(20):
        health.answer(read(device()))
    assert health.state is State.LOST


def test_no_answer_ends_a_loss_but_a_good_one() -> None:
    """While the driver is unloaded for the reset, the GPU is no better than before."""
    health = healthy()
    health.xid(xid(79))
    for reading in (Reading("none", "Driver Not Loaded"), Reading("failing", "Unknown Error"), read()):
        for _ in range(3):
            health.answer(reading)
            health.silence("no answer")
        assert health.state is State.LOST
    for _ in range(2):
        health.answer(read(device()))
    assert health.state is State.OK


def test_a_gpu_that_vanishes_from_the_host_is_missed() -> None:
    """Without names all GPUs are the node's: one fewer is not simply fewer."""
    health = healthy(count=2)
    for _ in range(2):
        health.answer(read(device(0)))
    assert (health.state, health.detail) == (State.TELEMETRY_LOST, "GPU-1: not there")

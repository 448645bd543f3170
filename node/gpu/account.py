"""How the node's GPUs look in the agent's report and in the registry."""

from node.gpu.health import Health, State
from node.gpu.reading import Device
from protocol import unbroken_pb2 as pb

_STATES: "dict[State, pb.GpuState]" = {
    State.NONE: pb.GPU_STATE_NONE,
    State.OK: pb.GPU_STATE_OK,
    State.LOST: pb.GPU_STATE_LOST,
    State.TELEMETRY_LOST: pb.GPU_STATE_TELEMETRY_LOST,
    State.DRIVER_UNRESPONSIVE: pb.GPU_STATE_DRIVER_UNRESPONSIVE,
}


def fill(report: pb.NodeReport, health: Health, *, devices: bool) -> pb.NodeReport:
    """Add the GPUs to a report; `devices`: each one with its figures. What is not known stays absent."""
    report.gpu, report.gpu_detail = _STATES[health.state], health.detail
    if health.state is State.OK:  # else the figures are old
        free = [d.memory_total - d.memory_used for d in health.devices if d.memory_total and d.memory_used is not None]
        report.free_bytes = sum(free)
        report.temperature_c = max((d.temperature_c or 0.0 for d in health.devices), default=0.0)
    if devices:
        report.gpus.extend(_gpu(health, device) for device in health.devices)
    return report


def registry_fields(health: Health) -> dict[str, str | int | float | bool]:
    """Return the node's registry fields about its GPUs."""
    return {"gpu": health.state.value, "gpu_detail": health.detail}


def _gpu(health: Health, device: Device) -> pb.Gpu:
    lost = health.lost(device)
    state = State.LOST if lost else State.TELEMETRY_LOST if device.failing else State.OK
    if health.state is State.DRIVER_UNRESPONSIVE:
        state = health.state
    remarks = [*filter(None, [lost]), *device.remarks, *(note for note in health.notes if device.title in note)]
    gpu = pb.Gpu(uuid=device.title, state=_STATES[state], detail="; ".join(remarks))
    if state is not State.OK:
        return gpu
    for name in ("memory_total", "memory_used", "utilisation", "temperature_c", "ecc_uncorrected"):
        value = getattr(device, name)
        if value is not None:
            setattr(gpu, name, value)
    gpu.pids.extend(device.pids or ())
    return gpu

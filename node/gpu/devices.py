"""Which GPUs are this node's: those its settings name, else those CUDA_VISIBLE_DEVICES names, else all. Pure."""

from collections.abc import Mapping, Sequence

from node.gpu.reading import Device
from recovery.config import NodeSettings


def wanted(settings: NodeSettings, environ: Mapping[str, str]) -> list[str] | None:
    """Return indexes and UUIDs of the node's GPUs; None: all of the host, an empty list: none.

    The command we start llama.cpp with computes on the CPU: a GPU is such a node's only when its settings say so.
    """
    if settings.devices:
        return list(settings.devices)
    if settings.engine == "llamacpp" and not settings.command:
        return []
    return visible(environ.get("CUDA_VISIBLE_DEVICES"))


def visible(value: str | None) -> list[str] | None:
    """Return what a CUDA_VISIBLE_DEVICES means: like CUDA, nothing from the first invalid entry on."""
    if value is None:
        return None
    names: list[str] = []
    for entry in value.split(","):
        name = entry.strip()
        if not (name.isdigit() or name.upper().startswith(("GPU-", "MIG-"))):
            break
        names.append(name)
    return names


def select(
    devices: Sequence[Device], names: Sequence[str] | None, places: Mapping[str, int]
) -> tuple[list[Device], list[str]]:
    """Return the devices `names` means, and the names that mean none.

    `places` holds where each UUID was seen earlier: a GPU that is lost no longer says who it is.
    """
    if names is None:
        return list(devices), []
    nameless = [device for device in devices if not device.uuid]
    chosen: dict[int, Device] = {}
    missing: list[str] = []
    for name in names:
        found = [device for device in devices if _means(name, device)]
        if not found and not name.isdigit():
            place = next((index for uuid, index in places.items() if _starts(uuid, name)), None)
            # Never seen, and there are lost ones nobody knows: it can only be among those.
            found = [device for device in nameless if place in (None, device.index)]
        if not found:
            missing.append(name)
        chosen |= {id(device): device for device in found}
    return list(chosen.values()), missing


def _means(name: str, device: Device) -> bool:
    if name.isdigit():
        return device.index == int(name)
    gpu, _, instance = name.upper().removeprefix("MIG-GPU-").partition("/")
    if name.upper().startswith("MIG-GPU-"):  # the older form: MIG-GPU-<uuid>/<GPU instance>/<compute instance>
        return _starts(device.parent, f"GPU-{gpu}") and str(device.instance) == instance.partition("/")[0]
    return _starts(device.uuid, name) or _starts(device.parent, name)


def _starts(uuid: str, name: str) -> bool:
    """Whether a UUID is meant: CUDA takes its beginning as well."""
    return bool(uuid) and uuid.upper().startswith(name.upper())

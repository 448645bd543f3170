"""How to start a llama.cpp engine process: the command `engines.llamacpp_server` understands.

Pure; apart from the adapter so that it needs no HTTP client.
"""

from pathlib import Path

from engines.base import LaunchCommand


def launch_command(
    *,
    python: str,
    model: Path,
    alias: str,
    host: str,
    port: int,
    slots: int,
    context: int,
    threads: int = 1,
    ubatch: int = 32,
    slot_dir: Path | None = None,
    digest: str | None = None,
) -> LaunchCommand:
    """Return the command that starts one engine process.

    ``context`` counts tokens per request. ``digest``, the model file's sha256, spares the engine reading it.
    """
    settings = {
        "--host": host,
        "--port": port,
        "--model": model,
        "--alias": alias,
        "--slots": slots,
        "--context": context,
        "--threads": threads,
        "--ubatch": ubatch,
        "--slot-dir": slot_dir,
        "--digest": digest,
    }
    argv = [python, "-m", "engines.llamacpp_server"]
    for name, value in settings.items():
        if value is not None:
            argv += [name, str(value)]
    return LaunchCommand(argv=argv, env={})

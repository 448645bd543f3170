"""The supervisor on real processes: restarts, gives up with a reason, leaves nothing behind."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from cli.supervisor import Child, StackFailed, Supervisor
from tests.rigs.stack import alive, until

Lines = list[tuple[str, str]]
FOREVER = "import time; print('up', flush=True); time.sleep(60)"


def python(code: str) -> list[str]:
    """Return the command line that runs some Python."""
    return [sys.executable, "-c", code]


@pytest.fixture
def lines() -> Lines:
    """What the processes printed."""
    return []


@pytest.fixture
async def supervisor(lines: Lines) -> AsyncGenerator[Supervisor]:
    """A supervisor that allows three restarts."""
    supervisor = Supervisor(lambda name, line: lines.append((name, line)), restarts=3, period_s=30)
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def test_output_comes_with_its_process_name(supervisor: Supervisor, lines: Lines) -> None:
    """Each line is handed on behind the name."""
    await supervisor.start_stage([Child("one", python(FOREVER))], 5)
    await until(lambda: ("one", "up") in lines)


async def test_a_killed_process_is_started_again(supervisor: Supervisor, lines: Lines) -> None:
    """SIGKILL brings a new process under the same name."""
    # Given a running process
    await supervisor.start_stage([Child("one", python(FOREVER))], 5)
    await until(lambda: ("one", "up") in lines)
    old = supervisor.pid("one")
    assert old is not None
    # When it is killed
    os.kill(old, signal.SIGKILL)
    # Then another one takes its place
    await until(lambda: supervisor.pid("one") not in (None, old) and lines.count(("one", "up")) == 2)


async def test_a_process_that_cannot_stay_up_ends_the_stack_with_its_last_words(supervisor: Supervisor) -> None:
    """The restart budget is an end, not a loop."""
    await supervisor.start_stage([Child("sick", python("print('no disk left'); raise SystemExit(7)"))], 5)
    async with asyncio.timeout(20):
        reason = await supervisor.failed()
    assert "sick ended 4 times" in reason
    assert "exit code 7" in reason
    assert "no disk left" in reason


async def test_a_configuration_error_is_not_tried_again(supervisor: Supervisor, lines: Lines) -> None:
    """Exit code 2 means that another start will not help."""
    await supervisor.start_stage([Child("wrong", python("print('node.model: no such file'); raise SystemExit(2)"))], 5)
    async with asyncio.timeout(10):
        assert await supervisor.failed() == "wrong refused to start: node.model: no such file"
    assert lines == [("wrong", "node.model: no such file")]


async def test_a_stage_that_is_never_ready_fails_by_name(supervisor: Supervisor) -> None:
    """Waiting for a process has a deadline, and its message names the process."""

    async def never() -> bool:
        return False

    with pytest.raises(StackFailed, match=r"slow was not ready within 0\.3 s"):
        await supervisor.start_stage([Child("slow", python(FOREVER), ready=never)], 0.3)


@pytest.mark.parametrize("stubborn", [False, True], ids=["obedient", "ignores-TERM"])
async def test_stop_ends_processes_and_what_they_started(
    supervisor: Supervisor, lines: Lines, tmp_path: Path, stubborn: bool
) -> None:
    """Children of children go too, even when TERM is ignored."""
    # Given a process with a child of its own
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if stubborn else ""
    code = (
        f"import signal, subprocess, sys, time; {ignore}"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    await supervisor.start_stage([Child("parent", python(code), grace_s=0.5)], 5)
    await until(lambda: bool(lines))
    parent, child = supervisor.pid("parent"), int(lines[0][1])
    assert parent is not None
    # When the stack stops
    await supervisor.stop()
    # Then neither is left
    await until(lambda: not alive(parent) and not alive(child))


async def test_a_killed_supervisor_takes_its_stack_along(tmp_path: Path) -> None:
    """Nothing stays behind when the supervisor itself is SIGKILLed."""
    # Given a supervisor in a process of its own
    pid_file = tmp_path / "pid"
    code = f"""
import asyncio, sys
from cli.supervisor import Child, Supervisor
async def main():
    s = Supervisor(lambda n, l: None, restarts=1, period_s=1)
    body = "import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    await s.start_stage([Child("x", [sys.executable, "-c", body])], 5)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(*python(code), cwd=Path(__file__).parents[3])
    try:
        await until(lambda: pid_file.exists() and pid_file.read_text().isdigit())
        # When it is killed
        process.kill()
        await process.wait()
        # Then its process ends as well
        await until(lambda: not alive(int(pid_file.read_text())))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

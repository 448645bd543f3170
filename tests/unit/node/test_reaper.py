"""Orphans of engines are taken in and reaped; children of ours are left to whoever waits for them."""

import subprocess
import sys

SCENE = '''
import os, subprocess, sys, time
from node import processes
from node.processes import Identity
from node.reaper import Reaper, become_subreaper

become_subreaper()
forks = """
import subprocess
child = subprocess.Popen(["/bin/sleep", "60"], stdout=subprocess.DEVNULL, start_new_session={detached})
print(child.pid)
"""
reaper = Reaper()

def orphan(detached):
    main = subprocess.Popen(
        [sys.executable, "-c", forks.format(detached=detached)], stdout=subprocess.PIPE, start_new_session=True
    )
    reaper.launched(main.pid)
    pid = int(main.communicate()[0])
    reaper.know([processes.identify(pid)] if detached else [])
    os.kill(pid, 9)
    return pid

def until_zombie(pid):
    end = time.monotonic() + 10
    while (stat := processes.read(pid)) is None or stat.state != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)

orphans = [orphan(False), orphan(True)]
own = subprocess.Popen(["/bin/false"], start_new_session=True)
reaper.launched(own.pid)
helper = subprocess.Popen(["/bin/false"])
for pid in (*orphans, own.pid, helper.pid):
    until_zombie(pid)

assert sorted(reaper.reap()) == sorted(orphans)
assert all(processes.read(pid) is None for pid in orphans)
assert (own.wait(), helper.wait()) == (1, 1)
assert reaper.reap() == []
'''


def test_orphans_of_an_engine_are_reaped_and_nothing_else() -> None:
    """One that stayed in its engine's session and one that left it; an engine and a helper keep their exit codes."""
    result = subprocess.run([sys.executable, "-c", SCENE], capture_output=True, text=True, timeout=60, check=False)

    assert (result.returncode, result.stderr) == (0, "")

"""`python -m node`: one agent process, configured by unbroken.toml and the environment."""

import sys

from node.agent import run
from recovery import process

if __name__ == "__main__":
    sys.exit(process.main("agent", run))

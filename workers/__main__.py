"""`python -m workers`: the dispatcher process, configured by unbroken.toml and the environment."""

import sys

from recovery import process
from workers.dispatcher import run

if __name__ == "__main__":
    sys.exit(process.main("dispatcher", run))

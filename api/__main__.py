"""`python -m api`: one gateway process, configured by unbroken.toml and the environment."""

import sys

from api.server import run
from recovery import process

if __name__ == "__main__":
    sys.exit(process.main("gateway", run))

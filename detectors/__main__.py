"""`python -m detectors`: one sentinel process, configured by unbroken.toml and the environment."""

import sys

from detectors.sentinel import run
from recovery import process

if __name__ == "__main__":
    sys.exit(process.main("sentinel", run))

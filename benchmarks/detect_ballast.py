"""A llama.cpp engine that holds as much memory as a bigger model would: the kernel must free it page by page.

`python -m benchmarks.detect_ballast …`, arguments as for `engines.llamacpp_server`.
"""

import mmap

from engines import llamacpp_server

BYTES = 2 * 1024**3
_PAGE = 4_096
_STEP = 64 * 1024**2


def hold(size: int = BYTES) -> mmap.mmap:
    """Return memory of which every 4 KiB page is resident, each page by itself."""
    ballast = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    ballast.madvise(mmap.MADV_NOHUGEPAGE)
    for begin in range(0, size, _STEP):
        end = min(begin + _STEP, size)
        ballast[begin:end:_PAGE] = b"\1" * len(range(begin, end, _PAGE))
    return ballast


if __name__ == "__main__":
    _ballast = hold()
    llamacpp_server.main()

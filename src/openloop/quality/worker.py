"""A process that grades, started by the pool."""

import sys

from openloop.quality.pool import work

if __name__ == "__main__":
    work(int(sys.argv[1]))

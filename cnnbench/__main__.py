"""``python -m cnnbench``."""

from __future__ import annotations

import sys

from cnnbench.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

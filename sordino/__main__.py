"""Runs the command line: `python -m sordino COMMAND …`.

For several ranks: `torchrun --nproc-per-node 2 -m sordino train mnist`.
"""

import sys

from sordino.app.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m fcal``."""

import sys

from fcal.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m tiltyard` is `tiltyard`."""

import sys

from tiltyard.cli import main

if __name__ == "__main__":
    sys.exit(main())

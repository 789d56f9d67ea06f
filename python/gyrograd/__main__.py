"""`python -m gyrograd` is the command `gyrograd`."""

import sys

from gyrograd.cli import main

sys.exit(main())

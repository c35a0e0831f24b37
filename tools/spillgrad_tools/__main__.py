"""`python -m spillgrad_tools` is the command `spillgrad`."""

import sys

from spillgrad_tools.cli import main

sys.exit(main())

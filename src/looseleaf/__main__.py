"""`python -m looseleaf`."""

import sys

from looseleaf.cli import main

sys.exit(main())

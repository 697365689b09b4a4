import sys

from vitrail.cli import main

sys.exit(main())

"""`python -m tvm_passes` is the command `tvm-passes`."""

import sys

from .command.main import main

if __name__ == "__main__":
    sys.exit(main())

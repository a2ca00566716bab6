"""`python -m rolltape ...` is `rolltape ...`: the command of this package, or the one on the PATH."""

import os
import sys

from rolltape._binary import binary


def main() -> None:
    """Becomes the command, with these arguments; its exit code is that of the command."""
    command = binary()
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    main()

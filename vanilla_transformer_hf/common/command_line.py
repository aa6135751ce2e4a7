"""How the scripts end. Nothing heavy is imported, so that --help is quick."""

import os
import sys
from collections.abc import Callable


def run(main: Callable[[], None], errors: tuple[type[Exception], ...] = (OSError, ValueError)) -> None:
    """
    Call a script's `main`, and end the process as all scripts do: after Ctrl-C with 130; after `errors`, which its
    user can mend, with a message and 2.
    """
    try:
        main()
        print(end="", flush=True)  # a broken pipe shows here, not after the end
    except BrokenPipeError:  # the reader of standard output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        sys.exit(130)
    except errors as error:
        print(f"{os.path.basename(sys.argv[0])}: {error}", file=sys.stderr)
        sys.exit(2)

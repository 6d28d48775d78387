"""The program `cstp`: it answers a hook as `cstp install` writes it, before click is loaded, or runs the command."""

from __future__ import annotations

import io
import sys

from cstp_grpc.common.garbage_collection import spare_modules_collection


def run_program() -> None:
    """Run the command line of this process."""
    spare_modules_collection()
    if sys.argv[1:2] == ["hook"]:
        # As click ends a command.
        try:
            if answer_usual_hook(sys.argv[2:]):
                return
        except KeyboardInterrupt:
            sys.exit("\nAborted!")
        except BrokenPipeError:
            # Otherwise the interpreter would flush the same stream at exit, and fail again.
            sys.stdout = io.StringIO()
            sys.exit(1)
    from cstp_grpc.cli.main import main

    main()


def answer_usual_hook(words: list[str]) -> bool:
    """Answer a hook by the resident process, or here; return False for words that click has to parse."""
    from cstp_grpc.cli.resident_client import answer_by_resident

    if answer_by_resident(words):
        return True
    from cstp_grpc.cli.hook_run import parse_usual_words, run_hook

    if (hook := parse_usual_words(words)) is not None:
        run_hook(hook)
    return hook is not None

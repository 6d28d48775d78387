"""The program `cstp`: it answers a hook as `cstp install` writes it, before click is loaded, or runs the command."""

from __future__ import annotations

import io
import sys

from cstp_grpc.common.garbage_collection import spare_modules_collection


def run_program() -> None:
    """Run the command line of this process."""
    spare_modules_collection()
    if sys.argv[1:2] == ["hook"]:
        from cstp_grpc.cli.resident_client import answer_by_resident

        if answer_by_resident(sys.argv[2:]):
            return
        from cstp_grpc.cli.hook_run import parse_usual_words, run_hook

        if (hook := parse_usual_words(sys.argv[2:])) is not None:
            # As click ends a command.
            try:
                run_hook(hook)
            except KeyboardInterrupt:
                sys.exit("\nAborted!")
            except BrokenPipeError:
                # Otherwise the interpreter would flush the same stream at exit, and fail again.
                sys.stdout = io.StringIO()
                sys.exit(1)
            return
    from cstp_grpc.cli.main import main

    main()

"""Keep queries of an agent in flight until this process is ended: `python -m tests.bench.queries PORT COUNT`."""

from __future__ import annotations

import itertools
import sys
from contextlib import ExitStack

from tests.bench.clients import OTHER_TOKEN, QUERY, connections, cstp_method
from tests.bench.load import keep_in_flight


def main() -> None:
    port, count = (int(argument) for argument in sys.argv[1:])
    method = cstp_method(port, "cstp.queryDecisions", lambda: {"query": QUERY}, OTHER_TOKEN)
    request = method.request()
    with ExitStack() as opened:
        made, each = connections(opened, method, count)
        keep_in_flight(iter([request] * count), made, each)
        print("in flight", flush=True)
        keep_in_flight(itertools.repeat(request), made, each)


if __name__ == "__main__":
    main()

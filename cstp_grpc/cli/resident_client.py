"""Have a hook answered by the resident process. This runs before each tool call, so it imports next to nothing.

`_socket` is `socket` without its enumerations, whose import takes longer than all that a hook does here.
"""

from __future__ import annotations

import _socket
import io
import os
import select
import sys
import time

from cstp_grpc.common.version import VERSION

TYPE_CHECKING = False
"""As in typing, whose import takes nearly as long as starting Python."""
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEFAULT_SECONDS = 8.0
"""Seconds for an answer. Chosen: what people bear when a server is away; the agent waits longer."""
MAX_BYTES = 16 * 1024 * 1024
"""Maximum size of an answer. An event is cut just beyond it, and then refused by the hook."""
PIECE_BYTES = 65_536
NAMESPACES = ("/proc/self/ns/mnt", "/proc/self/ns/net")
"""The view that a process has of files and of the network, on Linux."""
NAME_MODULUS = 2**64 - 59
"""A prime, by which names of sockets are derived."""

spent_seconds = 0.0
"""The seconds that this process has spent asking the resident process."""


def answer_by_resident(words: Sequence[str]) -> bool:
    """Print the resident process's answer to the event on standard input; return False without an answer.

    Standard input then yields the event again.
    """
    global spent_seconds
    given = [word for word in words if word in ("--resident", "--no-resident")]
    where, seconds = resident_socket(), read_seconds(words)
    # The last one counts. Click explains wrong seconds.
    if given[-1:] != ["--resident"] or where is None or seconds is None:
        return False
    begun, event, answer = time.monotonic(), b"", None
    try:
        event = b"".join(read_to_end(0, MAX_BYTES, begun + seconds))
        answer = ask_resident(where, words, event, begun + seconds)
    except OSError:
        pass
    if answer is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(event))
        spent_seconds = time.monotonic() - begun
        return False
    output, errors = answer
    print(errors, end="", file=sys.stderr)
    print(output, end="", flush=True)
    return True


def read_seconds(words: Sequence[str]) -> float | None:
    """Return the limit of a hook; None if it is no positive number."""
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        if name == "--timeout":
            try:
                seconds = float(value or words[number + 1])
            except (ValueError, IndexError):
                return None
            return seconds if seconds > 0 else None
    return DEFAULT_SECONDS


def resident_socket() -> str | None:
    """Return the socket path of this installation, in a folder of the user's own; None without a home."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return None
    # With the time of installing: the same version may be installed again with other code.
    changed = os.stat(__file__).st_mtime_ns
    installed = f"{sys.executable}\0{os.path.dirname(__file__)}\0{VERSION}\0{changed}\0{find_namespaces()}"
    name = int.from_bytes(os.fsencode(installed), "big") % NAME_MODULUS
    return os.path.join(home, ".cache", "cstp", f"hooks-{name:016x}.sock")


def find_namespaces() -> str:
    """Return which files and addresses this process sees, empty where the system does not say."""
    # Containers may share a home, but have other files at the same paths and other servers at the same addresses.
    try:
        return "".join(map(os.readlink, NAMESPACES))
    except OSError:
        return ""


def read_to_end(descriptor: int, most: int, deadline: float) -> Iterator[bytes]:
    """Yield the bytes of a stream, cut just beyond a limit. Raises OSError, TimeoutError at the deadline."""
    while most >= 0:
        if not select.select([descriptor], [], [], seconds_left(deadline))[0]:
            raise TimeoutError
        if not (piece := os.read(descriptor, PIECE_BYTES)):
            return
        most -= len(piece)
        yield piece


def ask_resident(path: str, words: Sequence[str], event: bytes, deadline: float) -> tuple[str, str] | None:
    """Return the output and the errors of the hook that the process listening at a path runs; None if none answers.

    Raises TimeoutError at the deadline.
    """
    connection = _socket.socket(_socket.AF_UNIX)
    try:
        if not is_private(os.path.dirname(path)):
            return None
        environment = (name + b"=" + value for name, value in os.environb.items())
        # The agent is an ancestor of this process only.
        fields = [os.getcwdb(), b"%d" % os.getppid(), b"%d" % len(words), *map(os.fsencode, words), *environment]
        header = b"\0".join(fields)
        connection.settimeout(seconds_left(deadline))
        connection.connect(path)
        connection.sendall(b"%d\n%b%b" % (len(header), header, event))
        connection.shutdown(_socket.SHUT_WR)
        return parse_answer(b"".join(read_to_end(connection.fileno(), MAX_BYTES, deadline)))
    # Whatever is wrong with it, the hook can answer itself. That the time is up is no such fault.
    except TimeoutError:
        raise
    except (OSError, ValueError):
        return None
    finally:
        connection.close()


def parse_answer(answer: bytes) -> tuple[str, str] | None:
    """Return the output and the errors in an answer; None if there is no output. Raises ValueError for a broken one."""
    sizes, _, texts = answer.partition(b"\n")
    output, errors = map(int, sizes.split())
    if output < 0 or output + errors != len(texts):
        raise ValueError("the answer is incomplete")
    # A hook that printed no answer has failed, and no answer would let a call through.
    printed = texts[:output].decode()
    return (printed, texts[output:].decode()) if printed.strip() else None


def is_private(folder: str) -> bool:
    """Return whether nobody but this user can put something into a folder. Raises OSError."""
    found = os.stat(folder)
    return found.st_uid == os.getuid() and not found.st_mode & 0o077


def seconds_left(deadline: float) -> float:
    """Return the seconds until a deadline. Raises TimeoutError after it."""
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left

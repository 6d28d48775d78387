"""What Linux tells of processes in /proc. On other systems nothing is found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LISTENING = "0A"
"""The state of a listening socket in /proc/net/tcp."""


@dataclass(frozen=True)
class Memory:
    """The memory of a process in MB: all it has resident, and its share, in which shared pages are divided."""

    resident: float
    share: float


def memory_of(pid: int) -> Memory | None:
    """Return the memory of a process, or None if the system does not tell."""
    path = PROC / str(pid) / "smaps_rollup"
    if not path.exists():
        return None
    fields = dict(line.split(":", 1) for line in path.read_text().splitlines()[1:])
    return Memory(*(int(fields[name].split()[0]) / 1000 for name in ("Rss", "Pss")))


def listeners(port: int) -> list[int]:
    """Return the processes that have a listening socket of a port."""
    found = {f"socket:[{each.inode}]" for each in sockets() if each.port == port and each.state == LISTENING}
    return sorted(pid for pid in all_pids() if found and found & open_files(pid))


def connected_process(port: int, client_port: int, pids: Sequence[int]) -> int:
    """Return which of some processes has the server's end of a connection. Raises LookupError."""
    inodes = {each.inode for each in sockets() if (each.port, each.peer_port) == (port, client_port)}
    for pid in pids:
        if {f"socket:[{inode}]" for inode in inodes} & open_files(pid):
            return pid
    raise LookupError(f"no process has the connection from port {client_port} to port {port}")


@dataclass(frozen=True)
class Socket:
    """A line of the kernel's table of TCP sockets."""

    port: int
    peer_port: int
    state: str
    inode: str


def sockets() -> Iterator[Socket]:
    """Yield all TCP sockets."""
    for name in ("tcp", "tcp6"):
        table = PROC / "net" / name
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            port, peer_port = (int(address.rsplit(":", 1)[1], 16) for address in fields[1:3])
            yield Socket(port, peer_port, fields[3], fields[9])


def all_pids() -> Iterator[int]:
    """Yield the ids of all processes."""
    yield from (int(entry.name) for entry in PROC.glob("[0-9]*"))


def open_files(pid: int) -> set[str]:
    """Return the files that a process has open; none for one that has ended or belongs to another user."""
    found = set()
    with suppress(FileNotFoundError, PermissionError):
        for descriptor in (PROC / str(pid) / "fd").iterdir():
            found.add(str(descriptor.readlink()))
    return found

"""The version of the package, which packaging reads from here.

Installed metadata has it too, but takes longer to read than some commands take to run.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = "0.2.0"

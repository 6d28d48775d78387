"""The mark that ends what was merged and names the report that it is from."""

from __future__ import annotations

MARK = "_Source: {}_"
"""How it is written, with the name of the report."""
MARK_PATTERN = MARK.format(r"[^\n]{0,300}")
"""What takes it for one, whoever wrote it; bounded, so that looking for it takes no longer the more there are."""

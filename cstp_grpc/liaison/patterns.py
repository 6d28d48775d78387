"""RFC 9485 regular expressions, which JSONPath knows as I-Regexps."""

from __future__ import annotations

from typing import Any

import regex

# The check that comes with the JSONPath library knows no counts of two digits, `[0-9]{16}`, and a path whose pattern it
# refuses finds nothing.
GRAMMAR = regex.compile(
    r"""(?x)
    (?(DEFINE)
      (?P<alternatives> (?&branch) (?: \| (?&branch) )* )
      (?P<branch> (?: (?&atom) (?&quantifier)? )*+ )
      (?P<quantifier> [*+?] | \{ [0-9]+ (?: , [0-9]* )? \} )
      (?P<atom> [^()*+.?\[\\\]{|}] | \. | (?&escape) | (?&category) | (?&class) | \( (?&alternatives) \) )
      (?P<escape> \\ [()*+\-.?\[\\\]^nrt{|}] )
      (?P<category> \\ [pP] \{
        (?: L[lmotu]? | M[cen]? | N[dlo]? | P[cdefios]? | Z[lps]? | S[ckmo]? | C[cfno]? ) \} )
      (?P<class> \[ \^? (?: - | (?&member) ) (?&member)*+ -? \] )
      (?P<member> (?&category) | (?&single) (?: - (?&single) )? )
      (?P<single> [^\-\[\\\]] | (?&escape) )
    )
    (?&alternatives)
    """
)

DOT = regex.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\.")
"""What has to be skipped to find the dots that stand for any character, and these."""


def compiled(pattern: str) -> Any:
    """Return a pattern of the regex library. Raises ValueError where the text is no I-Regexp."""
    if not GRAMMAR.fullmatch(pattern):
        raise ValueError(pattern)
    try:
        return regex.compile(DOT.sub(lambda found: r"[^\n\r]" if found[0] == "." else found[0], pattern))
    except regex.error as error:
        raise ValueError(pattern) from error

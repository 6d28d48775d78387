"""Find the operations in SQL texts, such as `drop table`, `delete all` and `grant`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from cstp_grpc.core.commands.wrappers import value_of

if TYPE_CHECKING:
    from sqlglot import exp

MAX_SQL_CHARACTERS: Final = 16 * 1024
"""Length of SQL that is parsed; longer text is searched for its keywords. Chosen: sqlglot takes about 20 ms for it."""
DIALECTS: Final = {
    "psql": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite3": "sqlite", "sqlite": "sqlite",
    "clickhouse-client": "clickhouse", "clickhouse": "clickhouse", "sqlcmd": "tsql", "cockroach": "postgres",
    "bq": "bigquery", "snowsql": "snowflake", "duckdb": "duckdb", "sqlplus": "oracle", "trino": "trino",
    "presto": "presto", "hive": "hive", "beeline": "hive", "impala-shell": "hive", "wrangler": "sqlite",
    "turso": "sqlite", "litecli": "sqlite", "pgcli": "postgres", "mycli": "mysql", "usql": "postgres", "cqlsh": "",
    "spark-sql": "spark", "osql": "tsql", "isql": "", "influx": "", "supabase": "postgres", "neonctl": "postgres",
    "questdb": "postgres", "ysqlsh": "postgres", "vsql": "postgres", "hdbsql": "", "athenacli": "athena",
    "dbaccess": "", "invoke-sqlcmd": "tsql", "cypher-shell": "", "surreal": "",
}  # fmt: skip
"""SQL clients, and the dialect that each speaks."""
TEXT_OPTIONS: Final = (
    "-c", "--command", "-e", "--execute", "-q", "--query", "-Q", "--sql", "-cmd", "--statement", "-s", "-query",
)  # fmt: skip
CLIENT_SHELL: Final = re.compile(
    r"(?m)(?:\\!|^[ \t]*(?:\.she?l?l?\b|\.syst?e?m?\b|!?system\b|host\b|:?!!?)"
    r"|(?:\\(?:o|out|g|gx|w|write)|^[ \t]*\.(?:once|output|read|import))[ \t]*[\"']?\|)(.+)"
)
r"""A shell text that a client runs, such as behind `\!` of psql and `.shell` of sqlite3."""
KEYWORDS: Final = (
    ("drop database", r"\bdrop\s+(?:database|keyspace|catalog)\b"),
    ("drop schema", r"\bdrop\s+schema\b"),
    ("drop table", r"\bdrop\s+(?:temporary\s+|foreign\s+|external\s+)?table\b"),
    ("drop view", r"\bdrop\s+(?:materialized\s+)?view\b"),
    ("drop user", r"\bdrop\s+(?:user|role|login)\b"),
    (
        "drop",
        r"\bdrop\s+(?!(?:database|keyspace|catalog|schema|temporary|foreign|external|table|materialized|view|user|role|login"
        r"|column|constraint)\b)\w+",
    ),
    ("drop column", r"\balter\s+table\b[^;]*\bdrop\s+(?:column\b|constraint\b|partition\b|\w+)"),
    ("truncate", r"\btruncate\b(?!\s*\()"),
    ("delete all", r"\bdelete\s+from\s+[\w.\"`\[\]]+\s*(?:;|$)"),
    ("delete all", r"\bdelete\s+from\b[^;]*\bwhere\s+(?:1\s*=\s*1|true|1)\s*(?:;|$)"),
    ("delete all", r"\bdetach\s+delete\b"),
    ("drop", r"\bremove\s+(?:table|database|namespace)\b"),
    ("delete", r"\bdelete\s+from\b"),
    ("update all", r"\bupdate\s+[\w.\"`\[\]]+\s+set\b(?![^;]*\bwhere\b)"),
    ("update", r"\bupdate\s+[\w.\"`\[\]]+\s+set\b"),
    ("grant", r"\bgrant\b.*\bto\b"),
    ("alter user", r"\b(?:alter|create)\s+(?:user|role|login)\b"),
    ("run program", r"\bcopy\b[^;]*\b(?:to|from)\s+program\b|\bxp_cmdshell\b|\bsys_exec\b|\bload_extension\b"),
    ("shutdown", r"(?:^|;)\s*shutdown\b|\bpg_terminate_backend\s*\("),
)
"""Patterns of operations in a text that is not parsed."""


def find_sql_texts(program: str, arguments: Sequence[str], operands: Sequence[str], stdin: str | None) -> list[str]:
    """Return the SQL texts that a client is given as options, operands or input."""
    words = [program, *arguments]
    texts: list[str] = []
    for position, word in enumerate(words[1:], 1):
        name, equals, value = word.partition("=")
        if equals and name in TEXT_OPTIONS:
            texts.append(value)
        elif word in TEXT_OPTIONS and position + 1 < len(words):
            texts.append(words[position + 1])
        elif re.match(r"-[ec]\S*\s", word):
            texts.append(word[2:])
    if value_of(words, "-e") and not texts:
        texts.append(value_of(words, "-e") or "")
    texts += [word for word in operands if re.search(r"\s|/\*", word)]
    return texts + ([stdin] if stdin else [])


def read_operations(text: str, dialect: str) -> set[str]:
    """Return the operations of SQL statements in lower case, such as `drop table`, `delete all` and `grant`."""
    # Commands of clients, such as \\dt and .tables, are no SQL.
    text = "\n".join(line for line in text.split("\n") if not re.match(r"\s*[\\.]\w", line))
    if not text.strip():
        return set()
    if len(text) > MAX_SQL_CHARACTERS or not re.search(
        r"(?i)\b(?:drop|delete|truncate|update|alter|grant|create|copy|exec|shutdown)\b", text
    ):
        return search_keywords(text)
    from sqlglot import errors, exp, parse

    # It would warn of each statement that it keeps as text, into the output of hooks too.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        statements = [each for each in parse(text, dialect=dialect or None) if each is not None and not is_plan(each)]
    except (errors.SqlglotError, RecursionError):
        return search_keywords(text)
    found = {operation for each in statements for operation in statement_operations(each)}
    # Statements that sqlglot keeps as unparsed text.
    is_unparsed = any(isinstance(each, exp.Command) for each in statements)
    return found | (search_keywords(text) if is_unparsed else set())


def is_plan(statement: exp.Expr) -> bool:
    from sqlglot import exp

    is_explained = isinstance(statement, exp.Command) and statement.name.upper() == "EXPLAIN"
    # `\g` of psql ends a statement, like a semicolon.
    is_run = re.search(r"(?i)\banaly[sz]e\b|\\", statement.sql())
    return (is_explained or isinstance(statement, exp.Describe)) and not is_run


def search_keywords(text: str) -> set[str]:
    """Return the operations whose keywords stand in a text, outside of its literals and comments."""
    bare = re.sub(r"'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", " '' ", text, flags=re.DOTALL)
    return {name for name, pattern in KEYWORDS if re.search(pattern, bare, re.IGNORECASE | re.DOTALL)}


def statement_operations(statement: exp.Expr) -> Iterator[str]:
    """Yield the operations of a parsed statement, nested ones too."""
    from sqlglot import exp

    for node in statement.walk():
        if isinstance(node, exp.Drop):
            kind = str(node.args.get("kind") or "").lower()
            if not isinstance(node.parent, exp.Alter):
                kind = "user" if kind == "role" else kind
                yield f"drop {kind}" if kind in ("database", "schema", "table", "view", "user", "column") else "drop"
        elif isinstance(node, exp.TruncateTable):
            yield "truncate"
        elif isinstance(node, exp.Delete):
            yield "delete"
            if is_always_true(node.args.get("where")):
                yield "delete all"
        elif isinstance(node, exp.Update):
            yield "update"
            if is_always_true(node.args.get("where")):
                yield "update all"
        elif isinstance(node, exp.Grant):
            yield "grant"
        elif isinstance(node, exp.Alter) and any(isinstance(each, exp.Drop) for each in node.args.get("actions") or ()):
            yield "drop column"


def is_always_true(where: exp.Expr | None) -> bool:
    from sqlglot import exp

    if where is None:
        return True
    condition = where.this
    if isinstance(condition, exp.EQ) and isinstance(condition.left, exp.Literal):
        return bool(condition.left == condition.right)
    return isinstance(condition, exp.Boolean | exp.Literal) and condition.sql().lower() not in ("false", "0")

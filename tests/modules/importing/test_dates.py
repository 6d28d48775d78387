"""Dates, and where they are found."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.modules.importing import DateOrigin
from cstp_grpc.modules.importing.record_files import DateError, find_date, parse_date
from tests.modules.importing.folder import Folder, nygard
from tests.named_case import named_case

DAY = datetime(2017, 9, 4, tzinfo=UTC)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-7))])


def test_a_day_is_midnight_in_utc() -> None:
    for text in [
        "2017-09-04",
        "2017/9/4",
        "2017.09.04",
        "20170904",
        "4 September 2017",
        "4th of September, 2017",
        "04-Sep-2017",
        "Monday, 4 Sept 2017",
        "September 4, 2017",
        "sep 4th 2017",
        "2017 September 4",
        "2017-Sep-04",
        "04.09.2017",
        " 2017-09-04 ",
        "2017-09-04T00:00:00Z",
        "2017-09-04 00:00",
        "2017-09-04 02:00:00 +0200",
        "2017-09-04T02:00:00.000+02:00",
    ]:
        with named_case(text):
            assert parse_date(text) == DAY
            assert parse_date(text).tzinfo is UTC


@pytest.mark.parametrize("text", ["25/09/2017", "09/25/2017", "25-9-2017"])
def test_a_day_that_can_be_only_one_is_read(text: str) -> None:
    assert parse_date(text) == datetime(2017, 9, 25, tzinfo=UTC)


@pytest.mark.parametrize("text", ["04/09/2017", "4-9-2017"])
def test_a_date_that_could_be_two_days_is_refused(text: str) -> None:
    with pytest.raises(DateError, match="could be two days"):
        parse_date(text)
    with pytest.raises(DateError, match="could be two days"):
        find_date(f"since {text}")


def test_what_is_no_date_is_refused() -> None:
    for text in [
        "",
        "soon",
        "YYYY-MM-DD",
        "2017",
        "2017-09",
        "2017-13-01",
        "2017-02-30",
        "04/09/17",
        "2017-09-04 25:00",
    ]:
        with named_case(text), pytest.raises(DateError):
            parse_date(text)


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=ZONES))
def test_every_instant_in_iso_format_is_read(instant: datetime) -> None:
    assert parse_date(instant.isoformat()) == instant


@given(st.text())
def test_any_text_is_a_date_or_refused(text: str) -> None:
    with suppress(DateError):
        assert parse_date(text).tzinfo is UTC


def test_the_first_date_of_a_line_is_found() -> None:
    assert find_date("accepted on 4 September 2017, reviewed 2018-01-01") == DAY
    assert find_date("accepted") is None


@pytest.mark.parametrize(
    ("name", "text", "origin"),
    [
        ("0001-a.md", "---\ndate: 2017-09-04\n---\n" + nygard(date="2018-01-01"), DateOrigin.FRONT_MATTER),
        ("2019-01-01-a.md", nygard(status="Accepted 2018-01-01"), DateOrigin.DATE_LINE),
        ("2019-01-01-a.md", nygard(date="", status="Proposed 2016-01-01\n\nAccepted 2017-09-04"), DateOrigin.STATUS),
        ("2017-09-04-a.md", nygard(date=""), DateOrigin.FILE_NAME),
        ("20170904-a.md", nygard(date="YYYY-MM-DD"), DateOrigin.FILE_NAME),
    ],
)
def test_a_date_is_taken_from_the_best_place_and_that_is_said(
    folder: Folder, name: str, text: str, origin: DateOrigin
) -> None:
    folder.write(name, text)
    parsed = folder.parsed(name)
    assert (parsed.record.content.date, parsed.date_from) == (DAY, origin)


def test_outside_of_git_the_modification_time_is_taken(folder: Folder) -> None:
    path = folder.write("0001-a.md", nygard(date="04/09/2017"))
    os.utime(path, (DAY.timestamp(), DAY.timestamp()))
    parsed = folder.parsed("0001-a.md")
    assert (parsed.record.content.date, parsed.date_from) == (DAY, DateOrigin.MODIFIED)
    assert "'04/09/2017' could be two days; it is not used as the date" in parsed.notes

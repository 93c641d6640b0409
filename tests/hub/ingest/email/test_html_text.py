"""The text of HTML pages, also of pages that are built to take long."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.hub.ingest.email.html_text import text_of_html


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("", ""),
        ("plain", "plain"),
        ("<p>one<p>two</p>three", "one\ntwo\nthree"),
        ("one<br>two<BR/>three", "one\ntwo\nthree"),
        ("<div><div><div>one</div></div></div>\n\n<div>two</div>", "one\n\ntwo"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>", "a b\n\nc"),
        ("a <b>bold\n  word</b>s", "a bold words"),
        ("John<!-- -->'s <!--> mail", "John's mail"),
        ("<!doctype html><?xml version='1.0'?><p>x", "x"),
        ("<html><head><title>no</title><style>p > a {}</style></head><body>yes</body>", "yes"),
        ("a<script>if (x < y) document.write('<p>no</p>')</SCRIPT >b", "ab"),
        ("a<script>never closed <p>no", "a"),
        ("a<!-- never closed <p>no", "a"),
        ("<!-- <script> -->yes", "yes"),
        ("<!--[if mso]><p>no</p><![endif]-->yes", "yes"),
        ("<![if !mso]>yes<![endif]>", "yes"),
        ("&lt;p&gt; &amp;amp; &uuml; &#252; &#xfc; &nbsp;&euro;", "<p> &amp; ü ü ü €"),
        ("&#0;&#xd800;&#99999999;&unknown;&", "\ufffd\ufffd\ufffd&unknown;&"),
        (f"&#{'9' * 5000};", f"\ufffd{'9' * 4992};"),
        ("<img alt='a > b' src=\"x\">yes", "yes"),
        ("1 < 2 and 3 > 2, <3", "1 < 2 and 3 > 2, <3"),
        ("<a href='never closed>one</a> <p>two", "one\ntwo"),
        ("yes<a", "yes"),
        ("<o:p>yes</o:p>", "yes"),
    ],
    ids=range(24),
)
def test_the_visible_text_of_a_page_is_extracted(page: str, text: str) -> None:
    assert text_of_html(page) == text


@given(
    st.lists(
        st.sampled_from(["<", ">", "<p ", "</", '"', "'", "<!--", "-->", "<script>", "</script", "&#1", "x", "\n"])
    )
)
def test_no_page_is_too_broken_to_read(pieces: list[str]) -> None:
    text_of_html("".join(pieces))


@pytest.mark.parametrize(
    "unit",
    [
        "<",
        "<a ",
        '<a "',
        '<a ">" ',
        "<a '\">",
        "<!--",
        "<!",
        "<script",
        "<script>",
        "</script",
        "&",
        "&#",
        "<style ",
        " <b>",
    ],
)
def test_the_time_is_linear_in_the_length(unit: str) -> None:
    """Twenty times the length takes twenty times as long; quadratic time would be minutes."""
    page = unit * (2_000_000 // len(unit))
    began = time.process_time()

    text_of_html(page)

    assert time.process_time() - began < 4

"""Nothing that a name contains becomes structure."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.reporting.markup import Markup, element, escape, join, markdown, visible


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(st.text())
def test_text_comes_back_as_text(text: str) -> None:
    reader = Reader()
    reader.feed(element("p", text, title=text))
    reader.close()
    assert reader.tags == [("p", {"title": visible(text)})]
    assert reader.text == visible(text)


def test_children_and_attributes() -> None:
    assert element("p", "a<b", None, Markup("<i>x</i>"), ["1", 2]) == "<p>a&lt;b<i>x</i>12</p>"
    assert element("rect", x=1.5, class_="all") == '<rect x="1.5" class="all"/>'
    assert element("meta", name_="a") == '<meta name="a">'
    assert element("details", open=True, hidden=False, id=None) == "<details open></details>"
    assert element("svg", aria_label='"><script>') == (
        '<svg aria-label="&quot;&gt;&lt;script&gt;"></svg>'
    )
    assert join("&", escape("&")) == "&amp;&amp;"


@pytest.mark.parametrize("sign", ["\u202e", "\u2028", "\u200b", "\n", "\x00", "\ufeff"])
def test_invisible_characters_are_written_out(sign: str) -> None:
    assert visible(f"a{sign}b") == f"a\\u{ord(sign):04x}b"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b", "a\\_b"),
        ("a|b", "a\\|b"),
        ("<script>", "&lt;script\\>"),
        ("&lt;", "&amp;lt;"),
        ("[x](http://e)", "\\[x\\](http\\://e)"),
        ("www.e.org", "www\\.e.org"),
        ("- item", "\\- item"),
        ("1. item", "1\\. item"),
        ("line\nbreak", "line\\\\u000abreak"),
        ("e = 1.5, x-y", "e = 1.5, x-y"),
    ],
)
def test_markdown_is_escaped(text: str, escaped: str) -> None:
    assert markdown(text) == escaped


@given(st.text())
def test_markdown_has_no_bare_sign_that_starts_structure(text: str) -> None:
    plain = markdown(text)
    assert "<" not in plain
    assert "\n" not in plain
    previous = ""
    for sign in plain:
        if previous == "\\":
            previous = ""
            continue
        assert sign not in "`*_[]|~#>$@"
        previous = sign

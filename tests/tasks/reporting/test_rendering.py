"""Nothing that a name contains becomes structure."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from tasks.reporting.rendering import _environment, markdown, render, visible


class Reader(HTMLParser):
    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@given(st.text())
def test_text_comes_back_as_text(text):
    template = _environment("html").from_string('<p title="{{ text }}">{{ text }}</p>')
    read = Reader(template.render(text=text))
    assert read.tags == [("p", {"title": visible(text)})]
    assert read.text == visible(text)


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_a_name_that_nobody_gives_is_an_error(suffix):
    with pytest.raises(UndefinedError):
        _environment(suffix).from_string("{{ absent }}").render()
    with pytest.raises(UndefinedError):
        render("gate.md")


@given(st.text())
def test_markdown_has_no_bare_sign_that_starts_structure(text):
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

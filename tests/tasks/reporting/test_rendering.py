"""Nothing that a name contains becomes structure."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from tasks.reporting.rendering import _environment, markdown, visible


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

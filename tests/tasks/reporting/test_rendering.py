"""Nothing that a name contains becomes structure."""

from html_page import Page
from hypothesis import given
from hypothesis import strategies as st

from tasks.reporting.rendering import _environment, markdown, visible


@given(st.text())
def test_text_comes_back_as_text(text):
    template = _environment("html").from_string('<p title="{{ text }}">{{ text }}</p>')
    page = Page(template.render(text=text))
    assert (page.tags, page.attributes) == (["p"], [("title", visible(text))])
    assert page.text == visible(text)


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

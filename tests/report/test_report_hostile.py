"""What models and environments say is shown, and never obeyed."""

import pytest
from report_folders import failed, said, write_run

from tiltyard.report.page import write_report
from tiltyard.rollout.trajectory import Trajectory

SCRIPT = "<script>window.pwned = 1</script>"
IMAGE = "<img src=x onerror='window.pwned = 1'>"
END = "</script></style></title><svg onload=window.pwned=1>"
LINK = "<a href='javascript:window.pwned=1'>click</a> [click](javascript:window.pwned=1)"
SEPARATORS = "line\u2028and\u2029paragraph \u202e turned \ud800 half \x00 nothing"
PLANTED = (SCRIPT, IMAGE, END, LINK, SEPARATORS)
ALL = " ".join(PLANTED)


def hostile(episode_id: str) -> Trajectory:
    call = {"id": "c", "type": "function", "function": {"name": ALL, "arguments": ALL}}
    return said(
        episode_id,
        messages=(
            {"role": ALL, "content": ALL},
            {"role": "user", "content": [{"type": "text", "text": ALL}]},
            {"role": "assistant", "content": ALL, "reasoning_content": ALL, "tool_calls": [call]},
            {"role": "tool", "name": ALL, "content": ALL, "tool_call_id": ALL},
        ),
        tools=({"type": "function", "function": {"name": ALL}},),
        info={ALL: ALL, "success": True},
        untrainable=ALL,
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Everything that someone else may write says the same evil things: ids, texts, errors, names of figures."""
    episodes = [hostile(ALL), failed("broken", error=ALL)]
    folder = tmp_path_factory.mktemp("hostile") / '<b>run &amp; "quoted"\''
    write_run(folder, episodes, **{ALL: 1.0, "reward_parts": {ALL: 2.0}})
    return write_report(folder)


@pytest.mark.parametrize("at", ["", "#episode=0.0", "#episode=0.1"])
def test_nothing_that_was_planted_runs(browser, report, at):
    """No script runs, no element of theirs exists, nothing is asked for, and the console is silent."""
    page = browser.open(report, at=at)
    page.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
    page.run("return new Promise((done) => setTimeout(done, 100))")
    assert page.run("return window.pwned") is None
    assert page.run("return document.querySelectorAll('main img, main svg, main script, main b').length") == 0
    assert (
        page.run("return [...document.querySelectorAll('a')].filter((e) => !e.hash && !e.href.endsWith('#')).length")
        == 0
    )
    assert (page.errors(), page.requests()) == ([], [])


def test_what_was_planted_is_shown_as_it_was_said(browser, report):
    """In the table, in messages, tool names and errors."""
    page = browser.open(report, at="#episode=0.0")
    for planted in (SCRIPT, IMAGE, END, LINK, "line\u2028and\u2029paragraph"):
        assert any(planted in text for text in page.texts(".message.assistant pre"))
        assert any(planted in text for text in page.texts(".call code"))
    assert page.texts("h1") == ['<b>run &amp; "quoted"\'']
    page.run("location.hash = ''")
    assert any(SCRIPT in text for text in page.texts(".tabulator-cell[tabulator-field=id]"))


def test_searching_for_what_was_planted_does_not_run_it_either(browser, report):
    """The search box compares text."""
    page = browser.open(report)
    page.find("[name=text]").send_keys("<script>")
    page.until("return document.getElementById('count').textContent === '2 episodes of 2'")
    assert page.run("return window.pwned") is None


def test_a_script_of_somebody_else_is_blocked_by_the_page_itself(browser, report):
    """Were one to slip in, the page's policy has the hashes of its own scripts alone."""
    page = browser.open(report)
    page.run(
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', `<img src=x onerror='window.pwned = 1'>`)"
    )
    page.run("return new Promise((done) => setTimeout(done, 50))")
    assert page.run("return window.pwned") is None
    assert any("Content Security Policy" in message for message in page.errors())

"""The report in a real browser: what a reader does with it, on a desk and on a phone."""

import json
from pathlib import Path

import pytest
from report_folders import failed, said, tokenizer_in, with_tool, write_run
from selenium.webdriver.common.keys import Keys

from tiltyard.report.page import write_report

EPISODES = [said(f"e{number:03d}", text=f"word{number}", reward=number / 10 - 2) for number in range(60)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Sixty played episodes, one with a tool, one that failed; the model's tokenizer is on this machine."""
    episodes = [*EPISODES, with_tool("tool"), failed("broken")]
    folder = tmp_path_factory.mktemp("report")
    return write_report(write_run(folder / "one", episodes, model=tokenizer_in(folder / "model")))


@pytest.fixture
def page(browser, report):
    """The report, opened."""
    return browser.open(report)


def ids(page) -> list[str]:
    return page.texts(".tabulator-row .tabulator-cell[tabulator-field=id]")


def choose(page, name: str, value: str) -> None:
    page.run(
        "const e = document.querySelector(`[name=${arguments[0]}]`); e.value = arguments[1];"
        "e.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )


def go(page, index: int) -> None:
    page.run("location.hash = `#episode=0.${arguments[0]}`", index)
    page.until("return !document.getElementById('detail').hidden")


def test_a_report_opens_from_the_disk_without_a_request_or_an_error(page):
    """It brings all that it needs along; its policy blocks nothing that it does."""
    assert (page.errors(), page.requests()) == ([], [])


def test_the_head_says_how_the_run_ended_and_what_improved(page):
    """The state, and the figure that the run is judged by, before and after."""
    assert page.texts("header p")[-1] == "finished 5 of 5 steps in 1 min 01 s"
    assert page.texts(".fact .value")[:2] == ["0.200 → 0.800", "5 of 5"]


def test_curves_are_drawn_for_the_figures_that_the_run_has(page):
    """Each says in words what it shows, for those who do not see it."""
    assert {"Reward", "Success", "Entropy", "Failed", "Length in turns"} <= set(page.texts(".chart-title"))
    assert page.run("return document.querySelectorAll('.plot canvas').length") == len(page.texts(".chart"))
    label = page.run("return document.querySelector('.plot').getAttribute('aria-label')")
    assert label == "Reward: from 0.200 to 1, between 0.200 and 1"


def test_more_figures_are_drawn_when_they_are_asked_for(page):
    """What is folded away is drawn once it is open, at its width."""
    before = len(page.texts(".chart"))
    page.find("#curves details summary").click()
    page.until("return document.querySelectorAll('#curves details .plot canvas').length > 0")
    assert page.run("return document.querySelectorAll('.plot canvas').length") == len(page.texts(".chart")) > before


def test_evaluations_stand_with_their_intervals(page):
    """Each figure before and after, one below the other."""
    rows = page.run(
        "return [...document.querySelectorAll('.scores tbody')][0].innerText.split(/[\\t\\n]+/).filter((t) => t.trim())"
    )
    assert rows[0] == "Success"
    assert rows[-4:] == ["after training", "0.800", "0.750 to 0.850", "20"]


def test_the_table_sorts_by_a_column_from_mouse_and_keyboard(page):
    """Episodes without a figure come last; the header says the order."""
    header = page.find(".tabulator-col[tabulator-field=reward]")
    page.run("arguments[0].scrollIntoView({block: 'center'})", header)
    header.click()
    page.until("return document.querySelector('[tabulator-field=reward]').getAttribute('aria-sort') === 'ascending'")
    assert ids(page)[0] == "e000"
    header.send_keys(Keys.ENTER)
    page.until("return document.querySelector('[tabulator-field=reward]').getAttribute('aria-sort') === 'descending'")
    assert ids(page)[0] == "e059"


def test_the_table_pages(page):
    """Twenty-five at a time."""
    assert len(ids(page)) == 25
    button = page.find(".tabulator-page[data-page=next]")
    page.run("arguments[0].click()", button)
    page.until("return document.querySelector('.tabulator-page.active').textContent === '2'")
    assert ids(page)[0] == "e025"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("text", "WORD42", ["e042"]),
        ("ending", "env_error", ["broken"]),
        ("outcome", "failed", ["broken"]),
        ("outcome", "no", [*(f"e{number:03d}" for number in range(21)), "tool"]),
    ],
)
def test_the_table_filters(page, name, value, expected):
    """By what was said, by ending and by outcome; the count says how many fit."""
    choose(page, name, value)
    page.until("return !document.getElementById('count').textContent.startsWith('62')")
    assert ids(page) == expected
    assert page.texts("#count")[0].startswith(f"{len(expected)} episode")


def test_all_episodes_come_back(page):
    """One button takes the filters away."""
    choose(page, "text", "word42")
    page.until("return document.querySelectorAll('.tabulator-row').length === 1")
    page.run("document.querySelector('.filters button').click()")
    page.until("return document.getElementById('count').textContent === '62 episodes of 62'")


def test_an_episode_shows_its_messages_calls_and_the_reward_of_each_turn(page):
    """In their order, each under its role."""
    go(page, 60)
    assert page.texts(".message .role") == ["user", "assistant", "tool · look", "assistant"]
    assert page.texts(".turn-reward") == ["turn 1: +0.25", "turn 2: -1.00"]
    assert page.texts(".call code") == ["look"]
    assert json.loads(page.texts(".call pre")[0]) == {"where": "box A"}
    assert page.texts(".why")[0] == "done the environment said that the task is over"


def test_tokens_are_coloured_by_what_was_sampled_and_how_likely_it_was(page):
    """Context has no colour; a probability of 0.61 has the second of six; pointing at one reads it."""
    go(page, 60)
    assert page.texts(".tokens .token.context") == ["H", "i", "D"]
    assert page.texts(".tokens .token.sampled") == ["B", "C", "E"]
    assert page.run("return document.querySelectorAll('.tokens .p1').length") == 3
    page.run("document.querySelectorAll('.tokens .sampled')[2].click()")
    assert page.texts(".tokens + .note") == ['token 6: "E", id 69, sampled in turn 2, log-probability -0.500, 60.7 %']


def test_a_failed_episode_says_why(page):
    """The ending, what it means, and the error."""
    go(page, 61)
    assert page.texts(".badge")[-1] == "env error"
    assert page.texts(".error-box pre") == ["OSError: the box is stuck"]


FOCUSED = "return document.activeElement.getAttribute('href')"


def test_a_link_keeps_the_focus_when_the_table_comes_into_view(page):
    """The rows are made anew then, and whenever the width changes; whoever goes by the keyboard is where he was."""
    page.run("window.drawn = 0; tilt.table.on('renderComplete', () => drawn++)")
    page.run("document.querySelector(`a[href='#episode=0.1']`).focus()")
    page.until("return drawn > 0")
    assert page.run(FOCUSED) == "#episode=0.1"
    page.run("tilt.table.redraw(true)")
    assert page.run(FOCUSED) == "#episode=0.1"


def test_an_episode_is_opened_by_its_link_and_left_by_the_back_button(page):
    """The focus goes to the episode's heading, and back to the link."""
    page.find("a[href='#episode=0.1']").send_keys(Keys.ENTER)
    page.until("return document.activeElement.textContent === 'Episode e001'")
    page.driver.back()
    page.until(f"{FOCUSED} === '#episode=0.1'")


def test_the_neighbours_of_an_episode_are_those_of_the_table(page):
    """Next goes on in the order of the filtered table."""
    choose(page, "text", "word5")
    page.until("return document.querySelectorAll('.tabulator-row').length === 11")
    go(page, 5)
    page.run("[...document.querySelectorAll('.bar a')].pop().click()")
    page.until("return document.querySelector('#detail h2').textContent === 'Episode e050'")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("at", ["", "#episode=0.60"])
def test_words_can_be_read_on_their_ground_in_both_schemes(browser, report, dark, at):
    """Every text has a contrast of 4.5 to its ground."""
    page = browser.open(report, dark=dark, at=at)
    weak = page.run(Path(__file__).with_name("contrast.js").read_text())
    assert weak == []
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(18, 20, 23)" if dark else "rgb(246, 247, 248)")


@pytest.mark.parametrize("at", ["", "#episode=0.60"])
def test_a_phone_needs_no_sideways_scrolling(browser, report, at):
    """Nothing stands out of a window of 360 pixels."""
    page = browser.open(report, width=360, height=740, at=at)
    assert page.too_wide() == []


def test_every_control_has_a_name(page):
    """Inputs have labels, headers of tables a scope, the charts a text."""
    unnamed = "(e) => !e.labels.length && !e.ariaLabel && !e.title"
    assert page.run(f"return [...document.querySelectorAll('input, select')].filter({unnamed}).length") == 0
    assert page.run("return [...document.querySelectorAll('main th')].filter((e) => !e.scope).length") == 0
    assert page.run("return document.querySelectorAll('[role=img]:not([aria-label])').length") == 0
    assert page.run("return document.documentElement.lang") == "en"

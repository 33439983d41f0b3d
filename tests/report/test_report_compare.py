"""Two runs side by side."""

import pytest
from report_folders import said, write_run

from tiltyard.report.page import write_report


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two runs of the same tasks; the second is longer and has an episode more."""
    path = tmp_path_factory.mktemp("two")
    first = write_run(path / "first", [said("e1", "A"), said("e2", "B")], steps=3)
    second = write_run(path / "second", [said("e1", "other A"), said("e2"), said("e3")], steps=6)
    return write_report(first, second)


def test_the_report_of_two_runs_stands_in_the_first_folder_under_the_name_of_the_second(report):
    """The first one's own report stays what it is."""
    assert report.name == "report-vs-second.html"


def test_both_runs_have_their_figures_and_share_the_charts(browser, report):
    """Each chart has a line for each run; evaluations stand below each other."""
    page = browser.open(report)
    assert page.texts("h1") == ["Two runs side by side"]
    assert page.texts(".of-run") == ["first", "second"]
    assert page.texts(".reading")[0].split() == ["last", "0.600", "1.200"]
    assert len(page.texts(".scores tbody:first-of-type tr")) == 1 + 2 * 2
    assert (page.errors(), page.requests()) == ([], [])


def test_the_manifests_are_compared(browser, report):
    """Only what differs stands at once."""
    page = browser.open(report)
    assert page.texts("#manifest > .scrolls tbody tr") == ["training.steps36"]


def test_an_episode_of_both_runs_is_shown_twice_side_by_side(browser, report):
    """Those of one phase and one id are of the same task."""
    page = browser.open(report, at="#episode=1.0")
    assert page.texts(".episode .assistant pre") == ["A", "other A"]
    page.run("location.hash = '#episode=1.2'")
    page.until("return document.querySelectorAll('.episode').length === 1")


def test_the_table_can_be_cut_to_one_run(browser, report):
    """The run is a filter like the others."""
    page = browser.open(report)
    page.run(
        "const e = document.querySelector('[name=run]'); e.value = '0';"
        "e.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    page.until("return document.getElementById('count').textContent === '2 episodes of 5'")


def test_two_runs_fit_a_phone(browser, report):
    """They stand below each other there."""
    assert browser.open(report, width=360, height=740).too_wide() == []
    assert browser.open(report, width=360, height=740, at="#episode=0.0").too_wide() == []

"""`tiltyard watch`: a run in the terminal as it goes."""

import io
import json
import os
import threading
import time

import pytest
from report_folders import failed, said, write_run

from tiltyard.cli import main
from tiltyard.errors import ConfigurationError
from tiltyard.report.watch import Tail, sparkline, watch
from tiltyard.train.run_folder import RunFolder


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(run) -> str:
    stream = io.StringIO()
    watch(run, stream)
    return stream.getvalue()


def test_a_finished_run_is_printed_once_where_there_is_no_terminal(tmp_path):
    """State, progress, evaluations, curves, steps and episodes."""
    text = shown(write_run(tmp_path / "run", [said("e1", "last [bold]words"), failed("broken")]))
    assert "run  finished 5 of 5 steps in 1 min 01 s" in text
    assert "step 5 of 5" in text
    assert "eval_after: success 0.800 [0.750, 0.850] (n=20)" in text
    assert "0.200 → 1.000" in text
    assert "last [bold]words" in text
    assert "OSError: the box is stuck" in text


def test_watching_ends_with_the_run(tmp_path):
    """In a terminal the view stays until the summary is there; here it is there already."""
    stream = Terminal()
    watch(write_run(tmp_path / "run", [said("e1")]), stream, every_s=60)
    assert "finished 5 of 5 steps" in stream.getvalue()


def test_a_run_is_watched_until_it_ends(tmp_path):
    """What it does meanwhile is shown, and the last view is that of its end."""
    with RunFolder.create(tmp_path / "run", "training: {steps: 2}\n") as folder:
        folder.write_metrics({"step": 1, "reward": 0.5})
        stream = Terminal()

        def goes_on() -> None:
            while "step 1 of 2" not in stream.getvalue():
                time.sleep(0.01)
            folder.write_metrics({"step": 2, "reward": 0.75})
            while "step 2 of 2" not in stream.getvalue():
                time.sleep(0.01)
            folder.write_summary({"steps": 2, "steps_done": 2, "attempts": 1, "seconds": 3.0, "interrupted": False})

        run = threading.Thread(target=goes_on)
        run.start()
        watch(tmp_path / "run", stream, every_s=0.01)
        run.join()
    assert "finished 2 of 2 steps in 3 s" in stream.getvalue()


def test_a_run_that_goes_on_says_when_it_was_last_heard_of(tmp_path):
    """Without a summary nobody knows whether it goes on."""
    with RunFolder.create(tmp_path / "run", "training: {steps: 9}\n") as folder:
        folder.write_metrics({"step": 1, "reward": 0.5})
        for file in (tmp_path / "run").iterdir():
            os.utime(file, (time.time() - 7230,) * 2)
        assert "last written 2 h 00 min ago" in shown(tmp_path / "run")
        assert "step 1 of 9" in shown(tmp_path / "run")


def test_what_a_model_says_does_not_move_the_cursor(tmp_path):
    """Control characters are left out."""
    text = shown(write_run(tmp_path / "run", [said("e1", "a\x1b[2Jb\rc")]))
    assert "\x1b" not in text
    assert "a [2Jb c" in text


def test_only_what_is_new_is_read(tmp_path):
    """A tail remembers where it was, leaves an unfinished line for later, and begins again in a shorter file."""
    file = tmp_path / "lines"
    tail = Tail(file, keep=2)
    assert tail.read() == []
    lines = [json.dumps({"episode_id": name}) + "\n" for name in "abc"]
    file.write_text(lines[0] + lines[1][:5])
    assert [record["episode_id"] for record in tail.read()] == ["a"]
    file.write_text("".join(lines))
    assert [record["episode_id"] for record in tail.read()] == ["b", "c"]
    file.write_text(lines[2])
    assert [record["episode_id"] for record in tail.read()] == ["c"]


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, "▁▂▃▄▅▆▇█"),
        ([0.0, 0.0, 1.0, 1.0], 2, "▁█"),
        ([1.0, None, 2.0], 3, "▁ █"),
        ([3.0, 3.0], 2, "▁▁"),
        ([None], 1, " "),
        ([], 5, ""),
    ],
)
def test_a_curve_is_one_line_of_blocks(values, width, expected):
    """Lowest to highest; a longer one shows means; what is not there is a space."""
    assert sparkline(values, width) == expected


def test_a_folder_without_a_run_cannot_be_watched(tmp_path):
    """It is said at once."""
    with pytest.raises(ConfigurationError, match="is no run folder"):
        watch(tmp_path, io.StringIO())


def test_the_commands_write_and_show(tmp_path, capsys):
    """`report` prints the file's path, `watch` the run; a wrong interval and a wrong place are refused."""
    run = write_run(tmp_path / "run", [said("e1")])
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}/report.html\n"
    assert main(["report", str(run), str(run), "--out", str(tmp_path / "two.html")]) == 0
    assert (tmp_path / "two.html").is_file()
    assert main(["report", str(run), "--out", str(tmp_path / "no" / "two.html")]) == 2
    assert "No such file or directory; give --out FILE" in capsys.readouterr().err
    assert main(["report", str(run), "--out", str(run)]) == 2
    assert "Is a directory; give --out FILE" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.tmp"))
    assert main(["watch", str(run)]) == 0
    assert "finished 5 of 5 steps" in capsys.readouterr().out
    for every in ("0", "nan", "inf"):
        assert main(["watch", str(run), "--every", every]) == 2
        assert f"--every must be above 0 seconds and at most 86400, got {float(every)}" in capsys.readouterr().err

"""Where rows come from, how a source is told apart, and what is wrong with one that cannot be read."""

import csv
import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from tiltyard import ConfigurationError
from tiltyard.errors import RowsNotFoundError
from tiltyard.rows import load_rows, split_rows
from tiltyard.rows.hub import load_hub

ROWS = [{"question": "1+1", "answer": 2}, {"question": "2+2", "answer": 4}, {"question": "3+3", "answer": 6}]


def write_jsonl(path, rows=ROWS):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_parquet(path, rows=ROWS):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_the_same_rows_come_from_every_kind_of_file(tmp_path, kind):
    """JSONL, JSON and Parquet give rows with the types that the file has."""
    path = tmp_path / f"rows.{kind}"
    if kind == "json":
        path.write_text(json.dumps(ROWS))
    else:
        {"jsonl": write_jsonl, "parquet": write_parquet}[kind](path)
    rows = load_rows(path)
    assert list(rows) == ROWS
    assert rows.columns == ("question", "answer")
    assert rows[-1] == ROWS[-1]
    assert list(rows[1:]) == ROWS[1:]


def test_the_values_of_a_csv_are_text(tmp_path):
    """A CSV says nothing about types, so nothing is guessed: `007` stays what it is."""
    (tmp_path / "rows.csv").write_text('question,answer\n"a, b",007\n')
    assert list(load_rows("rows.csv", base=tmp_path)) == [{"question": "a, b", "answer": "007"}]


def test_a_cell_of_a_csv_may_be_long(tmp_path):
    """A document is longer than Python's limit for cells, which stays as it was for others."""
    limit, text = csv.field_size_limit(), "x" * 200_000
    (tmp_path / "rows.csv").write_text(f"question,answer\n{text},1\n")
    assert load_rows(tmp_path / "rows.csv")[0]["question"] == text
    assert csv.field_size_limit() == limit


def test_nested_too_deeply_is_no_json(tmp_path):
    """It is told like anything else that cannot be read."""
    (tmp_path / "rows.jsonl").write_text("[" * 100_000)
    with pytest.raises(ConfigurationError, match=r"rows\.jsonl, line 1 is not JSON"):
        load_rows(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("source", [3, None, ({"a": n} for n in range(3)), {1, 2}])
def test_what_rows_cannot_be_read_from_is_refused_by_its_type(source):
    """Rows are asked for by their place, and counted: an iterator is not enough."""
    with pytest.raises(ConfigurationError, match=f"got {type(source).__name__} .*make a list of an iterator"):
        load_rows(source)


def test_rows_are_made_when_they_are_asked_for(tmp_path):
    """A row is the caller's own: what is written into it stays out of the data."""
    rows = load_rows(write_parquet(tmp_path / "rows.parquet"))
    rows[0]["answer"] = 99
    assert rows[0]["answer"] == 2


def test_a_row_without_a_key_has_none_there(tmp_path):
    """The columns of JSON lines are those of all lines together."""
    path = write_jsonl(tmp_path / "rows.jsonl", [{"a": 1}, {"b": 2}])
    assert list(load_rows(path)) == [{"a": 1, "b": None}, {"a": None, "b": 2}]


@pytest.mark.parametrize("text", ["", "[1]\n", '{"a": 1}\n{"a": \n', '"text"\n'])
def test_what_is_no_row_is_refused_with_its_line(tmp_path, text):
    """A file that is not rows is an error that names it."""
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(ConfigurationError, match=r"rows\.jsonl"):
        load_rows("rows.jsonl", base=tmp_path)


def test_a_csv_line_with_a_cell_too_many_is_refused(tmp_path):
    """A torn CSV is not read with its values in the wrong columns."""
    (tmp_path / "rows.csv").write_text("a,b\n1,2,3\n")
    with pytest.raises(ConfigurationError, match="line 2: 3 cells for 2 columns"):
        load_rows(tmp_path / "rows.csv")


# Paths and ids


@pytest.mark.parametrize("source", ["./rows.jsonl", "rows.jsonl", "data/../rows.jsonl"])
def test_a_text_that_looks_like_a_path_is_one(tmp_path, source):
    """The rule looks at the text, so that the same manifest means the same everywhere."""
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "rows.jsonl")
    assert len(load_rows(source, base=tmp_path)) == 3


@pytest.mark.parametrize("source", ["data/trian.parquet", "rows.jsonl", "./no/folder", "$NO_SUCH_PLACE/rows.json"])
def test_a_file_that_is_not_there_is_told_by_its_absolute_path(tmp_path, source):
    """A typo is no id of a hub: it is a missing file, and nothing is asked over the network."""
    with pytest.raises(RowsNotFoundError, match=str(tmp_path)) as caught:
        load_rows(source, base=tmp_path)
    assert isinstance(caught.value, FileNotFoundError)


def test_the_home_folder_is_filled_in(tmp_path, monkeypatch):
    """`~` is the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    write_jsonl(tmp_path / "rows.jsonl")
    assert len(load_rows("~/rows.jsonl")) == 3


def test_a_folder_that_shadows_a_hub_id_is_told_with_both_readings(tmp_path):
    """`demo/quiz` could be either, so neither is guessed."""
    (tmp_path / "demo" / "quiz" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=r"'\./demo/quiz' for the folder or 'hub:demo/quiz' for the hub's"):
        load_rows("demo/quiz", base=tmp_path)


def test_what_is_neither_path_nor_id_is_refused():
    """An id is `owner/name`."""
    with pytest.raises(ConfigurationError, match="neither a path"):
        load_rows("a b c")


# Folders


def test_a_folder_serves_the_files_of_one_split_in_order(tmp_path):
    """A file is of the split that its name begins with; `train` is served unless another is asked for."""
    write_jsonl(tmp_path / "data" / "train-00001.jsonl", [{"n": 2}])
    write_jsonl(tmp_path / "data" / "train-00000.jsonl", [{"n": 1}])
    write_jsonl(tmp_path / "data" / "test.jsonl", [{"n": 3}])
    (tmp_path / "README.md").write_text("not rows")
    assert [row["n"] for row in load_rows(tmp_path)] == [1, 2]
    assert [row["n"] for row in load_rows(tmp_path, split="test")] == [3]


def test_a_folder_of_splits_is_one_too(tmp_path):
    """`train/part.parquet` is of the split `train`."""
    write_parquet(tmp_path / "train" / "a.parquet", [{"n": 1}])
    write_parquet(tmp_path / "test" / "a.parquet", [{"n": 2}])
    assert list(load_rows(tmp_path)) == [{"n": 1}]
    assert list(load_rows(tmp_path, split="test")) == [{"n": 2}]


def test_a_folder_without_splits_serves_all_its_files(tmp_path):
    """Names that say no split are all rows."""
    write_jsonl(tmp_path / "a.jsonl", [{"n": 1}])
    write_jsonl(tmp_path / "b.jsonl", [{"n": 2}])
    assert [row["n"] for row in load_rows(tmp_path)] == [1, 2]


@pytest.mark.parametrize("empty", [True, False])
def test_an_unknown_or_empty_split_is_refused_by_its_name(tmp_path, empty):
    """A run does not begin with a split that is not there or has no rows."""
    write_jsonl(tmp_path / "train.jsonl")
    if empty:
        (tmp_path / "tran.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match="split 'tran'"):
        load_rows(tmp_path, split="tran")


def test_a_folder_with_two_kinds_of_files_is_refused(tmp_path):
    """Which of them are the rows is not guessed."""
    write_jsonl(tmp_path / "a.jsonl")
    write_parquet(tmp_path / "b.parquet")
    with pytest.raises(ConfigurationError, match=r"2 kinds \(.jsonl, .parquet\)"):
        load_rows(tmp_path)


def test_the_names_of_folders_are_no_columns(tmp_path):
    """`year=2020/rows.parquet` has the columns of its file."""
    path = write_parquet(tmp_path / "year=2020" / "rows.parquet")
    assert load_rows(path).columns == ("question", "answer")


# The library `datasets`


def test_what_save_to_disk_wrote_is_read(tmp_path):
    """Both a dataset and a dictionary of splits."""
    whole = datasets.Dataset.from_list(ROWS)
    whole.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": whole, "test": whole.select([0])}).save_to_disk(str(tmp_path / "two"))
    assert list(load_rows(tmp_path / "one")) == ROWS
    assert list(load_rows(tmp_path / "two")) == ROWS
    assert list(load_rows(tmp_path / "two", split="test")) == ROWS[:1]
    with pytest.raises(ConfigurationError, match="no split 'tran'; its splits are: train, test"):
        load_rows(tmp_path / "two", split="tran")


def test_a_hub_dataset_is_loaded_by_the_library(tmp_path):
    """The code that loads an id loads a folder of the form that a hub has."""
    write_jsonl(tmp_path / "quiz" / "train.jsonl")
    write_jsonl(tmp_path / "quiz" / "test.jsonl", ROWS[:1])
    rows = load_hub(str(tmp_path / "quiz"))
    assert [rows.row(index) for index in range(len(rows))] == ROWS
    assert len(load_hub(str(tmp_path / "quiz"), "test")) == 1
    with pytest.raises(ConfigurationError, match="no split 'tran'"):
        load_hub(str(tmp_path / "quiz"), "tran")


def test_a_hub_dataset_that_cannot_be_loaded_names_its_id(tmp_path):
    """What the library said is chained."""
    with pytest.raises(ConfigurationError, match=r"loading the dataset .*quiz"):
        load_hub(str(tmp_path / "quiz"))


# Columns

COLUMNS = [{"question": "q", "prompt": "p", "answer": "a"}]


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ({"question": "prompt", "prompt": "old_prompt"}, {"prompt": "q", "old_prompt": "p", "answer": "a"}),
        ({"question": "prompt", "prompt": "question"}, {"prompt": "q", "question": "p", "answer": "a"}),
        ({"answer": "response"}, {"question": "q", "prompt": "p", "response": "a"}),
    ],
)
def test_columns_are_renamed_all_at_once(columns, row):
    """Two names can be swapped, as no name is in between."""
    rows = load_rows(COLUMNS, columns=columns)
    assert rows[0] == row
    assert set(rows.columns) == set(row)
    assert list(load_rows(COLUMNS).renamed(columns)) == [row]


@pytest.mark.parametrize(
    ("columns", "both"),
    [
        ({"question": "prompt"}, ("question", "prompt")),
        ({"question": "text", "answer": "text"}, ("question", "answer")),
    ],
)
def test_two_columns_of_one_name_are_refused_and_both_are_named(columns, both):
    """No column is lost without a word."""
    with pytest.raises(ConfigurationError) as caught:
        load_rows(COLUMNS, columns=columns)
    assert all(repr(name) in str(caught.value) for name in both)


def test_a_column_that_is_not_there_is_told_with_those_that_are():
    """A misspelt column lists the columns."""
    with pytest.raises(ConfigurationError, match=r"'quesiton'.*'question', 'prompt', 'answer'"):
        load_rows(COLUMNS, columns={"quesiton": "prompt"})


# Fingerprints and splits


def test_the_fingerprint_is_of_the_content(tmp_path):
    """It does not depend on where the rows are, and it changes with each of them."""
    here, there = write_jsonl(tmp_path / "a.jsonl"), write_jsonl(tmp_path / "b" / "c.jsonl")
    other = write_jsonl(tmp_path / "d.jsonl", [*ROWS[:2], {"question": "3+3", "answer": 7}])
    rows = load_rows(here)
    assert rows.fingerprint == load_rows(there).fingerprint == load_rows(ROWS).fingerprint
    assert rows.fingerprint != load_rows(other).fingerprint
    assert rows.fingerprint != rows[:2].fingerprint
    assert rows.fingerprint != rows.renamed({"answer": "target"}).fingerprint
    parquet = [load_rows(write_parquet(tmp_path / name)).fingerprint for name in ("a.parquet", "b.parquet")]
    assert parquet[0] == parquet[1]


@pytest.mark.parametrize(("count", "share", "train"), [(10, 0.8, 8), (2, 0.99, 1), (2, 0.01, 1), (7, 0.5, 4)])
def test_a_split_has_no_row_twice_and_leaves_none_out(count, share, train):
    """Each row is in exactly one part, and each part has at least one."""
    rows = load_rows([{"n": n} for n in range(count)])
    parts = split_rows(rows, share)
    assert len(parts.train) == train
    assert sorted(row["n"] for part in (parts.train, parts.held_out) for row in part) == list(range(count))


def test_a_split_is_the_same_every_time_and_shuffled():
    """The held-out rows of one run are those of the next, and not just the end of the file."""
    rows = load_rows([{"n": n} for n in range(100)])
    held_out = [list(split_rows(rows, 0.9).held_out), list(split_rows(rows, 0.9).held_out)]
    assert held_out[0] == held_out[1]
    assert held_out[0] != list(rows[90:])
    assert held_out[0] != list(split_rows(rows, 0.9, seed=1).held_out)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("share", [1, 1.0])
def test_a_split_of_1_trains_on_all_rows(count, share):
    """None is held out, and the rows are what they were, in their order."""
    rows = load_rows([{"n": n} for n in range(count)])
    parts = split_rows(rows, share)
    assert (list(parts.train), len(parts.held_out)) == (list(rows), 0)
    assert parts.train.fingerprint == rows.fingerprint
    assert parts.held_out.columns == rows.columns


@pytest.mark.parametrize(("count", "share"), [(1, 0.5), (5, 0.0), (5, -1), (5, 1.5)])
def test_a_split_that_leaves_a_part_empty_is_refused(count, share):
    """Nothing is trained on the rows that measure it, and nothing is measured on no rows."""
    with pytest.raises(ConfigurationError):
        split_rows(load_rows([{"n": n} for n in range(count)]), share)

"""A command with places for arguments: each arrives as one word, byte for byte, or the tool is refused."""

import subprocess
import sys

import pytest

from tiltyard import ConfigurationError, ToolError
from tiltyard.envs.agent.template import CommandTemplate


def schema(*required, **optional):
    names = (*required, *optional)
    properties = {name: {"type": "string", **optional.get(name, {})} for name in names}
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": "tool", "description": "A tool.", "parameters": parameters}}


def words(template, **arguments):
    """What a program gets when bash runs the filled template."""
    show = f"{sys.executable} -c 'import sys; sys.stdout.write(repr(sys.argv[1:]))'"
    line = CommandTemplate(schema(*arguments), template.replace("show", show)).filled(arguments)
    return eval(subprocess.run(["bash", "-c", line], capture_output=True, check=True, text=True).stdout)


@pytest.mark.parametrize(
    "value",
    [
        "it's $(touch pwned) `id`; echo x",
        "a b.txt",
        "two\nlines\n",
        "",
        "-rf",
        "\u00fc\u4f60 \U0001f600",
        "a'b\"c\\",
        "* ? [a] ~ ! #",
        "EOF\nEOF",
        "&& || > < | & \t",
        "{path} ${HOME}",
    ],
)
def test_an_argument_arrives_as_one_word_byte_for_byte(value, tmp_path, monkeypatch):
    """Nothing in it is run, expanded or split."""
    monkeypatch.chdir(tmp_path)
    assert words("show {pattern} -- {path}", pattern=value, path="a b.txt") == [value, "--", "a b.txt"]
    assert list(tmp_path.iterdir()) == []


def test_other_braces_stay_as_they_are():
    """Shell variables and awk programs have them."""
    assert words("X=1; show ${X} {a} {b,c} '{print $1}'", a="{X}") == ["1", "{X}", "b", "c", "{print $1}"]


def test_an_argument_without_a_place_is_not_part_of_the_command():
    """A tool may have one for another reason."""
    assert words("show x", reason="why") == ["x"]


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ('grep -n "{pattern}" x', "quotes"),
        ("grep -n '{pattern}' x", "quotes"),
        ('bash -c "cat {pattern}"', "quotes"),
        ("echo `cat {pattern}`", "backticks"),
        ("echo $(( {pattern} + 1 ))", "arithmetic"),
        ("echo ${pattern}", "a shell variable"),
        ("echo \\{pattern}", "an escape"),
        ("cat > x <<EOF\n{pattern}\nEOF", "a here-document"),
    ],
)
def test_a_place_where_quoting_does_not_protect_is_refused_when_the_tool_is_defined(command, where):
    """Not at the call, when it is too late."""
    with pytest.raises(ConfigurationError, match=f"inside {where}"):
        CommandTemplate(schema("pattern"), command)


def test_a_file_is_written_without_a_here_document(tmp_path):
    """A line that would end one is only text."""
    text = "a\nEOF\n$(id)\n"
    template = CommandTemplate(schema("content", "path"), "printf %s {content} > {path}")
    line = template.filled({"content": text, "path": str(tmp_path / "a b")})
    subprocess.run(["bash", "-c", line], check=True)
    assert (tmp_path / "a b").read_text() == text


def test_an_argument_that_may_be_missing_needs_a_default():
    """What would stand in its place otherwise is nobody's choice."""
    with pytest.raises(ConfigurationError, match=r"needs \{path\}, which the model may leave out"):
        CommandTemplate(schema(path={}), "ls {path}")
    assert CommandTemplate(schema(path={"default": "a b"}), "ls {path}").filled({}) == "ls 'a b'"


def test_an_unknown_argument_is_the_models_mistake_and_named():
    """It is not dropped without a word."""
    with pytest.raises(ToolError, match="'tool' has no argument 'paht'; it has: path"):
        CommandTemplate(schema("path"), "ls {path}").filled({"path": "x", "paht": "y"})


def test_a_nul_is_the_models_mistake():
    """No program can be given one."""
    with pytest.raises(ToolError, match="'path' has a NUL"):
        CommandTemplate(schema("path"), "ls {path}").filled({"path": "a\0b"})


def test_values_that_are_no_text_are_written_as_json():
    """true is what the model wrote, not True."""
    parameters = {"properties": {"value": {}}, "required": ["value"]}
    tool = {"type": "function", "function": {"name": "tool", "parameters": {"type": "object", **parameters}}}
    template = CommandTemplate(tool, "show {value}")
    assert [template.filled({"value": value}) for value in (True, 3, 1.5, None, [1, "a"])] == [
        "show true",
        "show 3",
        "show 1.5",
        "show null",
        "show '[1, \"a\"]'",
    ]


@pytest.mark.parametrize("command", ["", " ", "a\0b", None])
def test_a_template_that_is_no_command_is_refused(command):
    """With what it is."""
    with pytest.raises(ConfigurationError, match="must be a line for a shell"):
        CommandTemplate(schema("path"), command)

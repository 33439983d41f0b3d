"""Commands and files through E2B's own SDK, over real HTTP."""

import pytest
from e2b import (
    CommandExitException,
    FileNotFoundException,
    FilesystemEventType,
    NotFoundException,
    SandboxException,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import PtySize


def test_a_command_gives_its_output_and_its_code(sandbox):
    """Standard output and standard error come apart; a code that is not 0 is the SDK's exception, with both."""
    assert sandbox.commands.run("echo out; echo err >&2").stdout == "out\n"
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (failed.value.exit_code, failed.value.stdout, failed.value.stderr) == (3, "out\n", "err\n")


def test_a_command_has_a_home_a_user_and_the_variables_that_were_given(sdk):
    """Variables of the sandbox are in every command, those of a command in that one alone."""
    made = sdk.Sandbox.create("base", timeout=60, envs={"A": "sandbox"})
    try:
        assert made.commands.run("echo $(whoami) $PWD $A $B", envs={"B": "command"}).stdout == (
            "user /home/user sandbox command\n"
        )
        assert made.commands.run("echo $A $B; pwd", cwd="/tmp").stdout == "sandbox\n/tmp\n"
    finally:
        made.kill()


def test_a_command_in_a_folder_that_is_not_there_is_told_so(sandbox):
    """The folder is named, and nothing is run."""
    with pytest.raises(NotFoundException, match="/no/such"):
        sandbox.commands.run("echo ran", cwd="/no/such")


def test_bytes_that_are_no_text_do_not_end_a_command(sandbox):
    """The SDK shows what is not UTF-8 as replacement characters."""
    assert sandbox.commands.run(r"printf 'a\xff\xfeb'").stdout == "a\ufffd\ufffdb"


def test_a_command_in_the_background_is_fed_and_followed(sandbox):
    """Its standard input stays open until it is closed; another handle can follow it."""
    command = sandbox.commands.run("while read line; do echo got $line; done", background=True, stdin=True)
    assert command.pid in [process.pid for process in sandbox.commands.list()]
    command.send_stdin("one\n")
    assert next(iter(command))[0] == "got one\n"
    again = sandbox.commands.connect(command.pid)
    sandbox.commands.send_stdin(command.pid, "two\n")
    sandbox.commands.close_stdin(command.pid)
    assert again.wait().stdout == "got two\n"
    assert sandbox.commands.list() == []


def test_a_command_that_is_killed_says_so(sandbox):
    """A second kill finds nothing."""
    command = sandbox.commands.run("sleep 60", background=True)
    assert sandbox.commands.kill(command.pid)
    with pytest.raises(CommandExitException) as killed:
        command.wait()
    assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")
    assert not sandbox.commands.kill(command.pid)


def test_a_command_past_its_time_out_is_killed_on_the_server(sandbox):
    """A client that stops waiting does not leave the command running."""
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 61", timeout=0.3)
    with pytest.raises(CommandExitException):  # it ends as soon as there is no such process
        sandbox.commands.run("while pgrep -f '[s]leep 61'; do sleep 0.05; done; exit 9")


def test_a_command_ends_with_its_main_process(sandbox):
    """A daemon that holds the output open is not waited for, and lives on."""
    assert sandbox.commands.run("sleep 62 & echo started").stdout == "started\n"
    assert sandbox.commands.run("pgrep -fc '[s]leep 62'").stdout == "1\n"


def test_much_output_comes_whole(sandbox):
    """Nothing is lost and nothing is held back when the output is larger than every buffer on its way."""
    result = sandbox.commands.run("head -c 5000000 /dev/zero | tr '\\0' x")
    assert (len(result.stdout), set(result.stdout)) == (5_000_000, {"x"})


def test_a_terminal_has_a_size_and_takes_keys(sandbox):
    """Its size can change while a command runs in it."""
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    shown = []
    assert terminal.wait(on_pty=shown.append).exit_code == 0
    assert b"30 100" in b"".join(shown)


def test_keys_can_be_streamed_to_a_terminal(sandbox):
    """One request carries any number of them."""
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.stream_input(terminal.pid, ["echo a", "b", "c\n", "exit\n"])
    shown = []
    terminal.wait(on_pty=shown.append)
    assert b"\rabc\r\n" in b"".join(shown)


def test_files_are_written_and_read_whatever_is_in_them(sandbox):
    """Text, bytes and streams, compressed or not, with the folders above them."""
    data = bytes(range(256)) * 4000
    sandbox.files.write("a/b/text.txt", "grüße\n")
    sandbox.files.write("data", data)
    sandbox.files.write("zipped", data, gzip=True)
    assert sandbox.files.read("a/b/text.txt") == "grüße\n"
    assert bytes(sandbox.files.read("data", format="bytes")) == data
    assert b"".join(sandbox.files.read("zipped", format="stream", gzip=True)) == data
    assert sandbox.commands.run("cat a/b/text.txt").stdout == "grüße\n"


def test_several_files_come_in_one_form(sandbox):
    """Each is answered with where it is."""
    written = sandbox.files.write_files([{"path": f"f{n}", "data": f"text {n}"} for n in range(3)])
    assert [entry.path for entry in written] == [f"/home/user/f{n}" for n in range(3)]
    assert sandbox.files.read("f2") == "text 2"


def test_a_file_is_described_with_what_was_said_about_it(sandbox):
    """Metadata stay with the file until it is written again."""
    sandbox.files.write("f", "four", metadata={"author": "me"})
    info = sandbox.files.get_info("f")
    assert (info.path, info.size, info.permissions, info.owner, info.metadata) == (
        "/home/user/f",
        4,
        "-rw-r--r--",
        "user",
        {"author": "me"},
    )
    sandbox.files.write("f", "again")
    assert sandbox.files.get_info("f").metadata is None


def test_folders_are_made_listed_moved_and_removed(sandbox):
    """Removing what is not there is no error, everything else on a missing path is."""
    assert sandbox.files.make_dir("d/e")
    assert not sandbox.files.make_dir("d/e")
    sandbox.files.write("d/e/f", "x")
    assert [entry.path for entry in sandbox.files.list("d", depth=2)] == ["/home/user/d/e", "/home/user/d/e/f"]
    assert sandbox.files.rename("d/e", "d/g").path == "/home/user/d/g"
    sandbox.files.remove("d")
    sandbox.files.remove("d")
    assert not sandbox.files.exists("d")
    for missing in (sandbox.files.read, sandbox.files.list, sandbox.files.get_info, sandbox.files.watch_dir):
        with pytest.raises(FileNotFoundException):
            missing("d")


def test_a_watched_folder_tells_what_happened_by_the_time_it_is_asked(sandbox):
    """With what each entry is, where that is wanted."""
    sandbox.files.make_dir("d")
    watch = sandbox.files.watch_dir("d", recursive=True, include_entry=True)
    sandbox.files.write("d/new/f", "x")
    events = watch.get_new_events()
    assert (events[0].type, events[0].name) == (FilesystemEventType.CREATE, "new")
    assert "/home/user/d/new/f" in [event.entry.path for event in events if event.entry]
    watch.stop()
    with pytest.raises(SandboxException, match="stopped"):
        watch.get_new_events()


def test_a_link_to_a_file_works_for_who_has_it_and_only_so_long(sandbox, wire):
    """The link is signed by the sandbox's token; another signature, or a time that is over, is refused."""
    sandbox.files.write("f", "by link")
    link = sandbox.download_url("f", use_signature_expiration=60)
    assert wire.http.get(link).text == "by link"
    assert wire.http.get(link.replace("path=f", "path=g")).json() == {"code": 401, "message": "invalid signature"}
    late = wire.http.get(sandbox.download_url("f", use_signature_expiration=-60))
    assert (late.status_code, late.json()["message"]) == (401, "signature is already expired")

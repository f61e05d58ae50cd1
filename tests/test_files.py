"""The one writer: whole or not at all, never through somebody else's link, private where asked; and bounded reading."""

from __future__ import annotations

import os
import pickle
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isogon import files
from isogon.errors import ArgumentError
from isogon.files import WriteError, read_json, read_toml, remove_leftovers, write_json, write_whole


def leftovers(folder):
    return sorted(file.name for file in folder.glob(".*"))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    """The system refuses in the middle of a write: a limit on the size of files, as a full disk would."""
    target = tmp_path / "page.html"
    write_whole(target, "old")
    code = (
        "import resource, signal; from isogon.files import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        f"write_whole({str(target)!r}, 'x' * 5_000_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "page.html could not be written (File too large): make room there" in done.stderr
    assert target.read_text() == "old"
    assert leftovers(tmp_path) == []


def test_the_temporary_file_is_new_and_private_and_follows_no_link(tmp_path, monkeypatch):
    """Whoever guesses its name and puts a link or an open file there gets nothing."""
    monkeypatch.setattr(files.secrets, "token_hex", lambda _: "guessed")
    planted = tmp_path / f".isogon-{os.getpid()}-guessed.partial"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    planted.symlink_to(elsewhere)
    with pytest.raises(WriteError, match="File exists"):
        write_json(tmp_path / "study.json", {"password": "secret"}, private=True)
    assert elsewhere.read_text() == ""
    planted.unlink()
    planted.write_text("")
    planted.chmod(0o666)
    with pytest.raises(WriteError, match="File exists"):
        write_json(tmp_path / "study.json", {"password": "secret"}, private=True)
    assert planted.read_text() == ""
    planted.unlink()
    (tmp_path / "study.json").touch(mode=0o666)
    write_json(tmp_path / "study.json", {"password": "secret"}, private=True)
    assert stat.S_IMODE((tmp_path / "study.json").stat().st_mode) == 0o600


def test_a_pipe_or_a_folder_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WriteError, match="not an ordinary file"):
        write_whole(tmp_path / "pipe", "x")
    with pytest.raises(WriteError, match="it is a folder"):
        write_whole(tmp_path, "x")
    with pytest.raises(WriteError, match="No such file"):
        write_whole(tmp_path / "nowhere" / "x", "x")
    with pytest.raises(WriteError, match="could not be written"):
        write_whole(f"{tmp_path}/a\0b", "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_leftovers_go_old_ones_anywhere_and_all_where_nobody_else_works(tmp_path):
    old, new, other = tmp_path / ".isogon-1-00.partial", tmp_path / ".b.2.partial", tmp_path / ".download.partial"
    for file in (old, new, other):
        file.touch()
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    remove_leftovers(tmp_path, of_anybody=False)
    assert leftovers(tmp_path) == [new.name, other.name]
    remove_leftovers(tmp_path)
    assert leftovers(tmp_path) == [other.name], "which is another program's"


def test_long_names_closed_files_and_other_processes(tmp_path):
    long = tmp_path / ("写" * 80 + ".html")
    write_whole(long, "whole")
    assert long.read_text() == "whole"
    long.chmod(0o600)
    write_whole(long, "again")
    assert stat.S_IMODE(long.stat().st_mode) == 0o600
    for name in ("", "/"):
        with pytest.raises(WriteError):
            write_whole(name, "x")
    error = WriteError(tmp_path, OSError(28, "No space left on device"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    refused = ArgumentError("lr", "above 0", -1, "give another")
    assert str(pickle.loads(pickle.dumps(refused))) == str(refused)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"[" * 100_000, "nested too deep"),
        (b"\xff\xfe", "UTF-8"),
        (b"{", "a JSON file"),
        (b"[1]", "holds an object"),
        (b"1" * 5000, "a JSON file"),
    ],
)
def test_a_bad_json_file_gets_one_sentence(tmp_path, content, rule):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ArgumentError, match=rule) as refusal:
        read_json(tmp_path / "a.json", "file")
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize("content", [b"a=" + b"[" * 1500, b"a=" + b"1" * 5000, b"\xff", b"a = "])
def test_a_bad_toml_file_gets_one_sentence(tmp_path, content):
    (tmp_path / "a.toml").write_bytes(content)
    with pytest.raises(ArgumentError, match=r"^file must be ") as refusal:
        read_toml(tmp_path / "a.toml", "file")
    assert len(str(refusal.value).splitlines()) == 1


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(ArgumentError, match="file must be a file, not a pipe"):
        read_toml(tmp_path / "pipe.toml", "file")


def test_what_is_written_is_synced_before_it_is_in_place(tmp_path, monkeypatch):
    """A crash of the machine leaves the old file or the new one: content, move, and the move's own record."""
    calls = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("sync") or fsync(descriptor))
    monkeypatch.setattr(Path, "replace", lambda self, target: calls.append("move") or replace(self, target))
    write_whole(tmp_path / "file", "content")
    assert calls == ["sync", "move", "sync"]


def test_a_file_without_end_is_not_read_to_its_end():
    with pytest.raises(ArgumentError, match="at most 16 MiB"):
        read_json("/dev/zero", "file")

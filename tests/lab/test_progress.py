"""What people see of many runs: on a real pseudo-terminal, and elsewhere."""

from __future__ import annotations

import os
import re
import sys
import threading

import pytest

from isogon.lab._progress import MOST_SHOWN, board_of

NAMES = [f"cnn4-n500-wd{decay:g}-s{seed}-0a1b2c3{seed}" for decay in (1, 0.1, 5e-5, 5e-6, 5e-7) for seed in range(2)]


class Terminal:
    """A pseudo-terminal of 80 columns in the place of stderr; `screen()` is what its user sees in the end."""

    def __init__(self):
        self._master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w")
        self._heard: list[bytes] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        try:
            while data := os.read(self._master, 65536):
                self._heard.append(data)
        except OSError:  # how Linux says that the other end is closed
            pass

    def screen(self):
        self.stream.close()
        self._thread.join(timeout=10)
        os.close(self._master)
        lines, row = [""], 0
        text = b"".join(self._heard).decode().replace("\r\n", "\n")
        for part in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if part == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif part == "\x1b[1A":
                row -= 1
            elif part == "\x1b[2K":
                lines[row] = ""
            elif not part.startswith("\x1b") and part != "\r":
                lines[row] += part
        return [line.rstrip() for line in lines]


@pytest.fixture
def made_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def make():  # within the test, since pytest puts its own stderr in place before it
        made = Terminal()
        monkeypatch.setattr(sys, "stderr", made.stream)
        return made

    return make


def tell(board):
    for passed in (1, 2, 3):
        for name in NAMES:
            board.epoch(name, passed, f"{20 * passed}.0 %")
    board.end(NAMES[1], "loss 0.3, test 61.0 %", best=(0.61, "61.0 %"))
    board.end(NAMES[0], "loss 0.4, test 60.0 %", best=(0.60, "60.0 %"))
    board.end(NAMES[9], "Traceback\n  somewhere\nValueError: [no] luck")


def test_a_terminal_shows_all_that_is_asked_for(made_terminal):
    terminal = made_terminal()
    with board_of(dict.fromkeys(NAMES, 4), done=2, shown=True) as board:
        tell(board)
    screen = terminal.screen()
    # Lines of those that ended stay above the bars.
    assert f"3 of 12 runs, {NAMES[1]}: loss 0.3, test 61.0 %" in screen
    assert f"5 of 12 runs, {NAMES[9]}: ValueError: [no] luck" in screen
    bars = [line for line in screen if "━" in line]
    assert all(len(line) <= 80 for line in bars)
    # Three runs that ended have no epochs left; seven have had three of their four.
    assert re.fullmatch(r"5 of 12 runs +\S* *━+ 33/40 [-\d:]+ [-\d:]+ best 61\.0 % \(wd1-s1\)", bars[0])
    running = [line for line in bars[1:] if "3/4" in line]
    assert len(running) == len(bars) - 1 == MOST_SHOWN
    assert [line.split()[0] for line in running] == [name.split("n500-")[1][:-9] for name in NAMES[2:9]]
    assert all(line.endswith("60.0 %") for line in running)


def test_a_terminal_is_not_flooded(made_terminal):
    terminal = made_terminal()
    with board_of(dict.fromkeys(NAMES, 4), done=0, shown=True) as board:
        for name in NAMES:
            board.epoch(name, 1, "20.0 %")
    assert sum("━" in line for line in terminal.screen()) == MOST_SHOWN + 1 < len(NAMES)


def test_elsewhere_a_line_is_printed_when_a_run_ends(capsys):
    with board_of(dict.fromkeys(NAMES, 4), done=2, shown=True) as board:
        tell(board)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"3 of 12 runs, {NAMES[1]}: loss 0.3, test 61.0 %",
        f"4 of 12 runs, {NAMES[0]}: loss 0.4, test 60.0 %",
        f"5 of 12 runs, {NAMES[9]}: ValueError: [no] luck",
    ]


def test_who_wants_no_progress_has_none(made_terminal):
    terminal = made_terminal()
    with board_of(dict.fromkeys(NAMES, 4), done=2, shown=False) as board:
        tell(board)
    with board_of({}, done=2, shown=True):
        pass
    assert terminal.screen() == [""]

"""The command line: verbs, their JSON, and exit codes; run in this process."""

from __future__ import annotations

import gc
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import FakeEncoder, as_nobody, build, object_files, picture, pictures
from PIL import Image

import casstore
from casstore.cli import COMMANDS, run
from casstore.encoders.pixels import Pixels

_numbers = itertools.count()


class Cli:
    """Runs commands on one store and reads what they print."""

    def __init__(self, place: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.capsys = place, capsys
        self.err = ""

    def plain(self, *arguments: Any) -> tuple[int, str]:
        """(exit code, stdout)"""
        self.capsys.readouterr()
        code = run([*map(str, arguments), "--store", self.place])
        out, self.err = self.capsys.readouterr()
        return code, out

    def json(self, *arguments: Any) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
        """(exit code, records before the last, the last); each line of stdout is one compact object."""
        code, out = self.plain(*arguments, "--json")
        lines = out.splitlines()
        records = [json.loads(line) for line in lines]
        assert [json.dumps(record, separators=(",", ":")) for record in records] == lines
        return code, records[:-1], records[-1]


@pytest.fixture
def cli(store: casstore.Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.delenv("CASSTORE_STORE", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Cli(store.path, capsys)
    gc.enable()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of ten pictures."""
    pictures(tmp_path / "data", 10)
    return tmp_path / "data"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A function that writes a module into the current folder and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(source: str) -> str:
        name = f"command_encoder_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


PIXELS = ("--encoder", "pixels", "--resolution", "64")
FAILING = """
from kit import FakeEncoder
def fail(items):
    if items[0].sample in ("p004.png", "p008.png"):
        raise MemoryError("GPU memory")
def make(): return FakeEncoder(before=fail)
"""


# -- help and usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [None, *COMMANDS])
def test_every_verb_has_help(verb: str | None, cli: Cli) -> None:
    """--help tells the usage and the options that all verbs share, or the verbs of a group, and exits with 0."""
    assert run([verb, "--help"] if verb else ["--help"]) == 0
    out = cli.capsys.readouterr().out
    assert out.startswith("Usage: ") and (("--store" in out and "--json" in out) or "\nCommands:\n" in out)
    assert verb is not None or all(name in out for name in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["status", "--nonsense"],
        ["build", "--encoder", "pixels"],
        ["build", "."],
        ["build", ".", "--encoder", "pixels", "--resolution", "large"],
        ["build", ".", "--encoder", "pixels", "--batch-size", "0"],
        ["build", ".", "--encoder", "pixels", "--on-error", "ignore"],
        ["build", "no/such/folder", "--encoder", "pixels"],
        ["gc", "--grace", "-1"],
        ["sql"],
        ["init", "--durability", "half"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_exits_with_2(cli: Cli, arguments: list[str]) -> None:
    """A wrong verb, option, value or folder is exit 2, with a message on stderr and nothing on stdout."""
    assert cli.plain(*arguments) == (2, "")
    assert cli.err


@pytest.mark.parametrize("name", ["no_such_module_at_all:x", "pixel", "json:loads", "os:nothing"])
def test_an_encoder_that_cannot_be_imported_exits_with_2(cli: Cli, data: Path, name: str) -> None:
    """An encoder that isn't there or isn't one is exit 2, names it, and builds nothing."""
    assert cli.plain("build", data, "--encoder", name) == (2, "")
    assert name in cli.err and casstore.open(cli.place).status().runs == ()


@pytest.mark.parametrize(
    ("verb", "kind"),
    [(verb, "folder") for verb in ("status", "verify", "gc", "sql", "build")] + [("status", "missing"), ("gc", "file")],
)
def test_what_is_not_a_store_exits_with_3(cli: Cli, tmp_path: Path, verb: str, kind: str) -> None:
    """Every verb but init refuses a path that isn't a store, names it, says how to make one, and makes nothing."""
    place = tmp_path / "other"
    if kind == "folder":
        place.mkdir()
    elif kind == "file":
        place.write_text("text")
    cli.place = str(place)
    arguments = {"sql": ["SELECT 1"], "build": [str(tmp_path), "--encoder", "pixels"]}.get(verb, [])
    assert cli.plain(verb, *arguments) == (3, "")
    assert str(place) in cli.err and "casstore init" in cli.err
    assert place.exists() == (kind != "missing") and (kind != "folder" or not list(place.iterdir()))


@pytest.mark.parametrize(("mode", "verb"), [(0o000, ["status"]), (0o500, ["gc", "--yes"])])
def test_missing_permission_exits_with_9(mode: int, verb: list[str]) -> None:
    """A store that the system doesn't let us read, or doesn't let us write where that is needed, is exit 9."""

    def work(folder: Path) -> Any:
        place = folder / "store"
        casstore.open(place, create=True, durability="off").close()
        everything = [place, *place.rglob("*")]
        for path in reversed(everything):
            path.chmod(mode if path.is_dir() else mode & 0o444)
        code = run([*verb, "--store", str(place)])
        for path in everything:
            path.chmod(0o700)
        return code

    assert as_nobody(work) == 9


# -- which store -----------------------------------------------------------------------------------------------------


def test_the_store_is_named_by_option_then_environment_then_folder(
    cli: Cli, store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--store after the verb wins over CASSTORE_STORE, and that over the nearest parent folder that is a store."""
    places = {name: str(tmp_path / name) for name in ("option", "environment", "folder")}
    for place in places.values():
        casstore.open(place, create=True, durability="off").close()

    def used(*arguments: str) -> str:
        assert run(["status", "--json", *arguments]) == 0
        return str(json.loads(cli.capsys.readouterr().out)["path"])

    monkeypatch.chdir(tmp_path / "folder" / "locks" / "owners")
    assert used() == places["folder"]
    monkeypatch.setenv("CASSTORE_STORE", places["environment"])
    assert used() == places["environment"]
    assert used("--store", places["option"]) == used("-s", places["option"]) == places["option"]


def test_without_any_store_the_ways_to_name_one_are_told(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of any store, a verb exits with 3 and says how to name or make one."""
    monkeypatch.chdir(tmp_path)
    assert run(["status"]) == 3
    err = cli.capsys.readouterr().err
    assert all(word in err for word in ("--store", "CASSTORE_STORE", "casstore init"))


# -- init ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["full", "off"])
def test_init_makes_a_store(cli: Cli, tmp_path: Path, durability: str) -> None:
    """init makes a store of the wanted durability, in a folder whose parents may be missing too."""
    cli.place = str(tmp_path / "deep" / "new")
    code, _, made = cli.json("init", "--durability", durability)
    assert (code, made) == (0, {"path": cli.place, "created": True, "durability": durability})
    with casstore.open(cli.place) as opened:
        assert opened.durability == durability


def test_init_leaves_an_existing_store_as_it_is(cli: Cli, store: casstore.Store, data: Path) -> None:
    """init on a store changes nothing and says so; another durability is refused with 2."""
    build(store, data, FakeEncoder())
    assert cli.json("init")[2] == {"path": cli.place, "created": False, "durability": "off"}
    assert store.status().variants == 10
    assert cli.plain("init", "--durability", "full") == (2, "")


# -- build -----------------------------------------------------------------------------------------------------------


def test_build_prints_a_summary_with_the_counts(cli: Cli, data: Path) -> None:
    """The last line of build --json has all counts, the reasons of the misses, and seconds."""
    code, others, summary = cli.json("build", data, *PIXELS)
    assert (code, others) == (0, [])
    counts = {"planned": 10, "hits": 0, "encoded": 10, "by_others": 0, "failed": 0, "left": 0, "reasons": {"new": 10}}
    assert summary.items() >= counts.items() and summary["seconds"] > 0 and summary["stored_bytes"] > 0
    code, _, again = cli.json("build", data, *PIXELS)
    assert (code, again["hits"], again["encoded"], again["reasons"]) == (0, 10, 0, {})


def test_build_takes_several_folders(cli: Cli, data: Path, tmp_path: Path) -> None:
    """All folders of one command are built together."""
    pictures(tmp_path / "more", 2)
    assert cli.json("build", data, tmp_path / "more", *PIXELS)[2]["planned"] == 12


@pytest.mark.parametrize(("resolution", "shape"), [("64", [3, 64, 64]), ("64x128", [3, 64, 128]), (None, [3, 48, 80])])
def test_build_takes_every_kind_of_resolution(
    cli: Cli, store: casstore.Store, tmp_path: Path, resolution: str | None, shape: list[int]
) -> None:
    """N, HEIGHTxWIDTH and nothing are the area, the fixed size and the full size."""
    path = picture(tmp_path / "set" / "a.png", size=(80, 48))
    option = ["--resolution", resolution] if resolution else []
    assert cli.plain("build", path.parent, "--encoder", "pixels", *option)[0] == 0
    assert list(store.get(path, Pixels().recipe, as_numpy=True)["pixels"].shape) == shape


def test_build_without_pictures_exits_with_1(cli: Cli, tmp_path: Path) -> None:
    """A folder without pictures is planned 0 and exit 1, so that a wrong path is noticed."""
    (tmp_path / "empty").mkdir()
    code, _, summary = cli.json("build", tmp_path / "empty", *PIXELS)
    assert (code, summary["planned"], summary["reasons"]) == (1, 0, {})


def test_t20_build_exits_with_1_and_names_what_failed(cli: Cli, data: Path, module: Callable[[str], str]) -> None:
    """T20: with 2 of 10 failing, exit 1, one line per failure with sample, path and reason, and a summary."""
    code, failures, summary = cli.json("build", data, "--encoder", f"{module(FAILING)}:make", "--batch-size", "1")
    assert (code, summary["encoded"], summary["failed"]) == (1, 8, 2)
    assert [failure["sample"] for failure in failures] == ["p004.png", "p008.png"]
    assert all(failure["path"] == str(data / failure["sample"]) for failure in failures)
    assert all("GPU memory" in failure["message"] for failure in failures)


def test_t20_people_see_the_failures_too(cli: Cli, data: Path, module: Callable[[str], str]) -> None:
    """Without --json, the names and reasons of what failed stand in the result."""
    code, out = cli.plain("build", data, "--encoder", f"{module(FAILING)}:make", "--batch-size", "1")
    assert code == 1 and "8 of 10 pictures ready" in out
    assert all(f"{name}: GPU memory" in out for name in ("p004.png", "p008.png"))


def test_on_error_raise_exits_with_1_and_a_message(cli: Cli, data: Path, module: Callable[[str], str]) -> None:
    """With --on-error raise, the first failure ends the command: exit 1, a message that names the file."""
    name = f"{module(FAILING)}:make"
    code, _ = cli.plain("build", data, "--encoder", name, "--batch-size", "1", "--on-error", "raise")
    assert code == 1
    assert "p004.png" in cli.err and "GPU memory" in cli.err


def test_retry_tries_bad_pictures_again(cli: Cli, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--retry decodes again what couldn't be decoded; without it the failure is reported from memory."""
    path = picture(data / "bad.jpg")
    path.write_bytes(path.read_bytes()[:-40])
    cli.json("build", data, *PIXELS)
    assert cli.json("build", data, *PIXELS)[2]["reasons"] == {"failed": 1}
    monkeypatch.setattr(
        "casstore.build.decode.decode", lambda *_: (_ for _ in ()).throw(casstore.errors.PictureError("2nd"))
    )
    code, (failure,), _ = cli.json("build", data, *PIXELS, "--retry")
    assert (code, failure["message"]) == (1, "2nd")


def test_bad_input_fails_by_name_and_the_rest_is_done(cli: Cli, data: Path) -> None:
    """Truncated, empty and text files fail, exit 1; 16 bit, CMYK, animation and alpha are stored with a note."""
    whole = picture(data / "truncated.jpg").read_bytes()
    (data / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (data / "empty.jpg").write_bytes(b"")
    (data / "text.jpg").write_text("a red cat")
    picture(data / "cmyk.jpg", mode="CMYK")
    picture(data / "alpha.png", mode="RGBA")
    picture(data / "grey16.png", mode="I;16")
    frames = [Image.new("L", (8, 8), grey) for grey in (0, 128, 255)]
    frames[0].save(data / "moving.gif", save_all=True, append_images=frames[1:])
    code, records, summary = cli.json("build", data, *PIXELS)
    failed = sorted(record["sample"] for record in records if "error" in record)
    noted = sorted(record["sample"] for record in records if "note" in record)
    assert (code, failed) == (1, ["empty.jpg", "text.jpg", "truncated.jpg"])
    assert noted == ["alpha.png", "cmyk.jpg", "grey16.png", "moving.gif"]
    assert (summary["planned"], summary["encoded"], summary["failed"]) == (17, 14, 3)


def test_conversions_are_notes_and_no_failures(cli: Cli, tmp_path: Path) -> None:
    """A CMYK picture is stored, exit 0, with a line that says what was done."""
    picture(tmp_path / "set" / "a.jpg", mode="CMYK")
    code, notes, summary = cli.json("build", tmp_path / "set", *PIXELS)
    assert (code, summary["encoded"], [note["sample"] for note in notes]) == (0, 1, ["a.jpg"])
    assert "CMYK" in notes[0]["note"]


def test_progress_and_logs_go_to_stderr(cli: Cli, data: Path) -> None:
    """What build tells while it works is on stderr; stdout has the result only."""
    code, out = cli.plain("build", data, *PIXELS)
    assert (code, out.startswith("done ")) == (0, True)
    assert "scan" in cli.err and "plan" in cli.err and "10 new" in cli.err


def test_more_failures_than_fit_are_counted(cli: Cli, tmp_path: Path) -> None:
    """People see at most 24 lines; the rest is counted, and --json has everything."""
    for number in range(40):
        path = tmp_path / "set" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"text %d" % number)
    _, out = cli.plain("build", tmp_path / "set", *PIXELS)
    assert len(out.splitlines()) <= 24 and "30 more" in out
    assert len(cli.json("build", tmp_path / "set", *PIXELS)[1]) == 40


# -- status ----------------------------------------------------------------------------------------------------------


def test_status_counts_what_there_is(cli: Cli, store: casstore.Store, data: Path) -> None:
    """status --json is one line with the counts and sums of the contract, which are those of the tables."""
    cli.json("build", data, *PIXELS)
    (data / "copy.png").write_bytes((data / "p000.png").read_bytes())
    (data / "p009.png").unlink()
    cli.json("build", data, *PIXELS)
    code, others, status = cli.json("status")
    assert (code, others) == (0, [])
    assert {name: status[name] for name in ("sources", "hashes", "variants", "objects")} == {
        "sources": 10,
        "hashes": 10,
        "variants": 10,
        "objects": 10,
    }
    assert status["stored_bytes"] == sum(path.stat().st_size for path in object_files(cli.place))
    assert status["payload_bytes"] == store.sql("SELECT sum(payload_bytes) FROM v_objects").rows[0][0]
    (recipe,) = status["recipes"]
    assert (
        recipe.items()
        >= {
            "name": "pixels",
            "digest": Pixels().recipe.digest.hex(),
            "variants": 10,
            "stored_bytes": status["stored_bytes"],
        }.items()
    )


def test_status_of_an_empty_store(cli: Cli) -> None:
    """A new store has no recipes and only zeros."""
    status = cli.json("status")[2]
    names = ("sources", "hashes", "variants", "objects", "payload_bytes", "stored_bytes")
    assert ({status[name] for name in names}, status["recipes"]) == ({0}, [])
    assert cli.plain("status")[0] == 0


def test_people_see_the_verdict_first(cli: Cli, data: Path) -> None:
    """The first line of status is the verdict: sound, or what is damaged; at most 24 lines follow."""
    cli.json("build", data, *PIXELS)
    _, out = cli.plain("status")
    assert out.startswith("store: sound; 10 variants, ") and len(out.splitlines()) <= 24
    object_files(cli.place)[0].unlink()
    cli.plain("verify")
    assert cli.plain("status")[1].startswith("store: 1 damaged object; ")


# -- verify ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [False, True])
def test_verify_of_a_sound_store(cli: Cli, data: Path, deep: bool) -> None:
    """A sound store is exit 0, with the number of objects checked."""
    cli.json("build", data, *PIXELS)
    code, findings, summary = cli.json("verify", *["--deep"] * deep)
    assert (code, findings, summary["checked"], summary["damaged"]) == (0, [], 10, 0)


@pytest.mark.parametrize(("kind", "plain_finds"), [("gone", True), ("longer", True), ("flipped", False)])
def test_verify_finds_damage(cli: Cli, data: Path, kind: str, plain_finds: bool) -> None:
    """A missing file and a wrong size are found by verify, a flipped bit by --deep; exit 1, one line per finding, and
    the next build makes it again."""
    cli.json("build", data, *PIXELS)
    victim = object_files(cli.place)[0]
    stored = bytearray(victim.read_bytes())
    victim.unlink()
    if kind != "gone":
        stored[len(stored) // 2] ^= 1
        victim.write_bytes(bytes(stored) + b"x" * (kind == "longer"))
    assert cli.json("verify")[0] == int(plain_finds)
    code, (finding,), summary = cli.json("verify", "--deep")
    assert (code, summary["checked"], summary["damaged"]) == (1, 10, 1)
    assert finding["name"] == victim.name.partition(".")[0]
    assert cli.json("build", data, *PIXELS)[2]["reasons"] == {"damaged": 1}
    assert cli.json("verify", "--deep")[0] == 0


def test_people_see_what_is_damaged(cli: Cli, data: Path) -> None:
    """Without --json, verify names the object, and says what to do."""
    cli.json("build", data, *PIXELS)
    victim = object_files(cli.place)[0]
    victim.unlink()
    code, out = cli.plain("verify")
    assert (code, out.startswith("damaged: 1 finding")) == (1, True)
    assert victim.name.partition(".")[0] in out and "casstore build" in out


# -- gc --------------------------------------------------------------------------------------------------------------


def test_gc_is_a_dry_run_without_yes(cli: Cli, store: casstore.Store, data: Path) -> None:
    """gc alone says what would go and removes nothing; with --yes it removes just that."""
    cli.json("build", data, *PIXELS)
    store.forget(Pixels().recipe).execute()
    before = object_files(cli.place)
    code, _, dry = cli.json("gc", "--grace", "0")
    assert (code, dry["condemned"], dry["swept"], dry["freed_bytes"]) == (0, 10, 0, 0)
    assert object_files(cli.place) == before and store.status().objects == 10
    size = sum(path.stat().st_size for path in before)
    code, _, done = cli.json("gc", "--grace", "0", "--yes")
    assert (code, done["condemned"], done["swept"], done["would_free_bytes"]) == (0, 10, 10, 0)
    assert dry["would_free_bytes"] == done["freed_bytes"] == size
    assert (object_files(cli.place), store.status().objects) == ([], 0)


def test_gc_keeps_what_is_used_and_what_is_young(cli: Cli, store: casstore.Store, data: Path) -> None:
    """What a variant refers to stays at any grace; what nobody refers to stays for the grace period."""
    cli.json("build", data, *PIXELS)
    assert cli.json("gc", "--yes", "--grace", "0")[2]["swept"] == 0
    store.forget(data / "p000.png").execute()
    assert cli.json("gc", "--yes", "--grace", "1")[2].items() >= {"condemned": 1, "swept": 0, "waiting": 1}.items()
    assert len(object_files(cli.place)) == 10


def test_people_see_that_gc_did_nothing_yet(cli: Cli, store: casstore.Store, data: Path) -> None:
    """A dry run says so first, and which command does it last."""
    cli.json("build", data, *PIXELS)
    store.forget(Pixels().recipe).execute()
    _, out = cli.plain("gc", "--grace", "0")
    assert out.startswith("dry run: ") and out.rstrip().endswith("casstore gc --yes")


# -- sql -------------------------------------------------------------------------------------------------------------


def test_sql_prints_rows(cli: Cli, data: Path) -> None:
    """sql prints one object per row and a summary; people get a table with the columns' names."""
    cli.json("build", data, *PIXELS)
    query = "SELECT path, resolution, tensors FROM v_variants ORDER BY path LIMIT 2"
    code, rows, summary = cli.json("sql", query)
    assert (code, summary["rows"]) == (0, 2)
    assert rows == [
        {"path": str(data / f"p00{i}.png"), "resolution": "64x64", "tensors": "pixels U8 [3,64,64]"} for i in (0, 1)
    ]
    code, out = cli.plain("sql", query)
    assert [line.split()[0] for line in out.splitlines()] == ["path", rows[0]["path"], rows[1]["path"]]


def test_every_view_can_be_read(cli: Cli, data: Path) -> None:
    """The views of the contract exist and have rows after a build."""
    cli.json("build", data, *PIXELS)
    for view in ("v_sources", "v_variants", "v_objects", "v_tensors", "v_runs"):
        assert cli.json("sql", f"SELECT * FROM {view}")[2]["rows"] >= 1


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO settings VALUES ('a', 'b')",
        "DELETE FROM sources",
        "UPDATE sources SET name = 'x'",
        "REPLACE INTO settings VALUES ('a', 'b')",
        "WITH x AS (SELECT 1) DELETE FROM sources",
        "CREATE TABLE t (a)",
        "CREATE TEMP TABLE t (a)",
        "DROP TABLE sources",
        "ATTACH DATABASE 'other.db' AS other",
        "PRAGMA user_version = 99",
        "PRAGMA user_version",
        "VACUUM",
        "VACUUM INTO 'copy.db'",
        "BEGIN IMMEDIATE",
        "COMMIT",
        "SELECT 1; DELETE FROM sources",
        "SELECT nothing FROM sources",
        "not sql at all",
        "",
        "/* a comment */",
    ],
)
def test_sql_refuses_everything_but_one_select(
    cli: Cli, store: casstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    """Whatever could change something, or isn't SQL, is exit 2 with a message, and nothing has changed."""
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "a.png", size=(8, 8))
    store.scan(tmp_path)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert cli.plain("sql", query) == (2, "")
    assert cli.err.startswith("casstore: ")
    assert (store.status().sources, sorted(path.name for path in tmp_path.iterdir())) == (1, files)


def test_sql_of_text_that_is_not_unicode_exits_with_2(cli: Cli) -> None:
    """Bytes on the command line that are no UTF-8 are refused like any other query that can't be read."""
    assert cli.plain("sql", "SELECT '\udcff'") == (2, "")


# -- encoders of one's own -------------------------------------------------------------------------------------------


def test_an_encoder_in_the_current_folder_is_found(cli: Cli, data: Path, module: Callable[[str], str]) -> None:
    """--encoder module:attribute is imported from the current folder."""
    name = module("from kit import FakeEncoder\nmake = FakeEncoder")
    code, _, summary = cli.json("build", data, "--encoder", f"{name}:make", "--resolution", "64x64")
    assert (code, summary["encoded"]) == (0, 10)
    assert cli.json("status")[2]["recipes"][0]["name"] == "fake"


# -- what reaches the terminal ---------------------------------------------------------------------------------------

NASTY = "esc\x1b[2J bell\x07 line\nfeed cr\r tab\t c1\x9b del\x7f bidi\u202e"


@pytest.mark.parametrize("verb", ["build", "status", "sql", "error"])
def test_control_characters_of_names_never_reach_the_terminal(cli: Cli, tmp_path: Path, verb: str) -> None:
    """File names, store names and messages are shown with their control characters escaped, line feeds too."""
    folder = tmp_path / NASTY
    picture(folder / f"{NASTY}.jpg", mode="CMYK")
    (folder / f"bad {NASTY}.jpg").write_bytes(b"")
    cli.place = str(folder / NASTY)
    casstore.open(cli.place, create=True, durability="off").close()
    code, built = cli.plain("build", folder, *PIXELS)
    assert code == 1
    out = {
        "build": lambda: built,
        "status": lambda: cli.plain("status")[1],
        "sql": lambda: cli.plain("sql", "SELECT path FROM v_sources")[1],
        "error": lambda: cli.plain("build", folder / "nothing", *PIXELS)[1] + cli.err,
    }[verb]()
    assert "esc" in out
    assert not {c for c in out if not c.isprintable()} - {"\n"}
    assert not any(line.lstrip().startswith("feed") for line in out.splitlines())


# -- build: roles, params and files of other kinds -------------------------------------------------------------------

OPENING = """
import casstore, numpy as np
calls = []
class Clips:
    recipe = casstore.Recipe("clips", code=1)
    def __call__(self, items):
        found = []
        for item in items:
            assert item.data is None and item.image is None
            with open(item.path, "rb") as stream:
                data = stream.read()
            calls.append(item.sample)
            found.append({"t": np.frombuffer(data[: item.params["frames"]], np.uint8).copy()})
        return found
"""


def clips(folder: Path) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{name}.mp4" for name in "abc"]
    for path in paths:
        path.write_bytes(path.name.encode() * 50)
    return paths


def test_files_that_an_encoder_opens_itself_with_frames_in_params(
    cli: Cli, store: casstore.Store, tmp_path: Path, module: Callable[[str], str]
) -> None:
    """--extensions takes other files, --params reaches the encoder and the key; one edited file is one encode."""
    paths, name = clips(tmp_path / "clips"), module(OPENING)
    command = ["build", tmp_path / "clips", "--encoder", f"{name}:Clips", "--extensions", ".MP4,.mov"]
    assert cli.json(*command, "--params", '{"frames": 5}')[2]["encoded"] == 3
    paths[1].write_bytes(b"edited" * 9)
    code, _, summary = cli.json(*command, "--params", '{"frames": 5}')
    assert (code, summary["encoded"], summary["hits"], summary["reasons"]) == (0, 1, 2, {"edited": 1})
    assert sys.modules[name].calls == ["a.mp4", "b.mp4", "c.mp4", "b.mp4"]
    recipe = casstore.Recipe("clips", code=1)
    assert bytes(store.get(paths[1], recipe, params={"frames": 5}, as_numpy=True)["t"]) == b"edite"
    assert cli.json(*command, "--params", '{"frames": 7}')[2]["reasons"] == {"variation": 3}
    assert "3 of 3 files ready" in cli.plain(*command, "--params", '{"frames": 7}')[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--params", "{frames: 3}"],
        ["--params", "[3]"],
        ["--link", "caption"],
        ["--link", "=.txt"],
        ["--extensions", "mp4"],
        ["--probe", "nothing"],
        ["--probe", "no_such_module_at_all:x"],
        ["--probe", "sys:path"],
        ["--role", "image", "--role", "image"],
    ],
    ids=" ".join,
)
def test_options_of_rows_that_cannot_be_meant_exit_with_2(cli: Cli, data: Path, arguments: list[str]) -> None:
    """Each is refused before anything is encoded, with a message that repeats what was given."""
    assert cli.plain("build", data, *PIXELS, *arguments) == (2, "")
    assert arguments[-1].split(":")[0] in cli.err


def test_a_caption_role_links_txt_files(cli: Cli, data: Path, module: Callable[[str], str]) -> None:
    """--role caption implies --link caption=.txt: one edit is one encode, and a picture without one fails by name."""
    name = module("from rowing import Recorder")
    command = ("build", data, "--encoder", f"{name}:Recorder", "--role", "caption")
    for path in data.glob("*.png"):
        path.with_suffix(".txt").write_text(f"picture {path.stem}")
    code, out = cli.plain(*command)
    assert code == 0 and "10 of 10 captions ready: 0 reused, 10 encoded" in out
    assert "11 of 11 captions ready: 10 reused, 1 encoded" in cli.plain(*command, "--empty-text")[1]
    (data / "p000.txt").write_text("another")
    assert cli.json(*command)[2]["reasons"] == {"edited": 1}
    (data / "p001.txt").unlink()
    code, records, summary = cli.json(*command)
    assert (code, summary["failed"], summary["encoded"]) == (1, 1, 0)
    assert records[0]["sample"] == "p001.png" and "p001.txt" in records[0]["message"]


def test_links_can_be_given(cli: Cli, data: Path, module: Callable[[str], str]) -> None:
    """--link says which files go with each picture; one with ? may be absent, and is counted."""
    name = module("from rowing import Recorder")
    (data / "p000.caption").write_text("a cat")
    (data / "p001-mask.png").write_bytes((data / "p001.png").read_bytes())
    links = ("--link", "caption=.caption?", "--link", "mask=-mask.png?", "--reader", "lines-1")
    command = ("build", data, "--encoder", f"{name}:Recorder", *links)
    assert cli.json(*command, "--role", "image", "--role", "mask")[2]["planned"] == 10
    summary = cli.json(*command, "--role", "caption")[2]
    assert (summary["planned"], summary["absent"], summary["encoded"]) == (1, 9, 1)


@pytest.mark.parametrize("ending", [".jsonl", ".CSV", ".tsv"])
def test_a_table_may_stand_for_a_folder(cli: Cli, data: Path, module: Callable[[str], str], ending: str) -> None:
    """A file with the ending of a table is read as rows; folders beside it are scanned."""
    name = module("from rowing import Recorder")
    comma = {".CSV": ",", ".tsv": "\t"}.get(ending)
    given = [("p000.png", "red"), ("b", "blue")]
    told = [json.dumps({"sample": sample, "caption": text}) for sample, text in given]
    if comma is not None:
        told = [comma.join(line) for line in [("sample", "caption"), *given]]
    Path(f"rows{ending}").write_text("\n".join(told))
    code, _, summary = cli.json("build", f"rows{ending}", "--encoder", f"{name}:Recorder")
    assert (code, summary["encoded"]) == (0, 2)
    assert cli.plain("build", f"rows{ending}", data, "--encoder", f"{name}:Recorder")[0] == 2  # p000.png twice
    assert "p000.png" in cli.err


def test_options_for_folders_are_refused_with_tables_alone(cli: Cli, data: Path, module: Callable[[str], str]) -> None:
    """--reader says how caption files of a table are read, too; what means nothing to a table is refused."""
    name = module("from rowing import Recorder")
    Path("paths.jsonl").write_text(json.dumps({"caption": ["one", "two"]}))
    for option in (["--link", "caption=.txt"], ["--extensions", ".mp4"], ["--trust"], ["--rehash"]):
        assert cli.plain("build", "paths.jsonl", "--encoder", f"{name}:Recorder", *option)[0] == 2
        assert option[0] in cli.err
    command = ("build", "paths.jsonl", "--encoder", f"{name}:Recorder", "--role", "caption", "--reader", "lines-1")
    assert cli.json(*command)[2]["encoded"] == 2

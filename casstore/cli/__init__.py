"""What people type. Commands are imported when they are called, so that `casstore --help` is quick."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from casstore import __version__
from casstore.errors import BuildInterrupted, CasstoreError

COMMANDS: dict[str, tuple[str, str]] = {
    "build": ("casstore.cli.build", "Encode what is new or changed in folders of files."),
    "db": ("casstore.cli.db", "Look after the index itself: upgrade, restore, copy."),
    "explain": ("casstore.cli.explain", "Tell why a file is served or isn't, field by field."),
    "gc": ("casstore.cli.upkeep", "Remove what nobody refers to any more (a dry run without --yes)."),
    "init": ("casstore.cli.init", "Make a store."),
    "ls": ("casstore.cli.ls", "List what is stored."),
    "missing": ("casstore.cli.missing", "Tell what files of a folder lack, or what has failed."),
    "recipes": ("casstore.cli.recipes", "List, show, compare and retire what tensors were made with."),
    "repack": ("casstore.cli.upkeep", "Change how objects are stored: compressed, or raw for mapping."),
    "roots": ("casstore.cli.roots", "List, move and confirm the dataset folders that the store knows."),
    "sql": ("casstore.cli.sql", "Run a SELECT over the index."),
    "status": ("casstore.cli.status", "Tell what the store holds."),
    "verify": ("casstore.cli.upkeep", "Check that everything is there, with --deep that every byte is right."),
}
"""{verb: (module that has it, what --help says of it)}"""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name][0]), f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="casstore")
def casstore() -> None:
    """Encode once: never wrong, never lost, never twice.

    Every command takes --store/-s DIR; otherwise CASSTORE_STORE names the store, or the nearest parent folder that is
    one. Results go to stdout, everything else to stderr; --json gives one object per line, the last is the summary.

    Exit codes: 0 fine, 1 findings or failures, 2 usage, 3 not a store, 4 store older or newer, 5 busy, 6 no space,
    7 unsafe place, 8 corrupt, 9 permission, 130 interrupted.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    gc.disable()  # imports make no garbage worth looking for; commands enable it again
    try:
        code = casstore.main(args=None if arguments is None else list(arguments), standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return 2
    except CasstoreError as error:
        _complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as error:
        cause = error.__cause__  # click turns every KeyboardInterrupt, also ours, into its own Abort
        _complain(str(cause) if isinstance(cause, BuildInterrupted) else "interrupted; what was committed is kept")
        return BuildInterrupted.exit_code
    except (MemoryError, RuntimeError, SystemError) as error:
        if not _is_lack_of_memory(error):
            raise
        _complain("out of memory; what was committed is kept. A build needs less with --workers 1 --batch-size 1")
        return 1
    except BrokenPipeError:
        # The reader of our output has gone; nothing is left to say, and flushing at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _is_lack_of_memory(error: BaseException) -> bool:
    """Also where Python says it in other words: threads that can't start, calls in C that fail without an error."""
    if isinstance(error, SystemError):
        return isinstance(error.__context__, MemoryError)
    return isinstance(error, MemoryError) or "start new thread" in str(error)


def main() -> None:
    """The entry point of the console script."""
    sys.exit(run())


def _complain(message: str) -> None:
    from casstore.cli.output import printable

    click.echo(f"casstore: {printable(message)}", err=True)

"""casstore build"""

from __future__ import annotations

import time
from typing import Literal, get_args

import click

from casstore.cli import build_output as output
from casstore.cli.build_options import (
    devices_from,
    find_inputs,
    params_from,
    progress_from,
    resolutions_from,
    scanning_from,
)
from casstore.cli.build_procs import build_in_processes
from casstore.cli.common import open_store, with_store
from casstore.cli.output import counted, note, seconds
from casstore.encoders.load import load_encoder
from casstore.errors import BuildStopped
from casstore.identity.buckets import Method


@click.command("build")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@with_store
@click.option("--encoder", required=True, metavar="E", help="pixels, or package.module:attribute.")
@click.option(
    "--resolution",
    "resolution",
    multiple=True,
    metavar="R",
    help="N (about N x N pixels) or HEIGHTxWIDTH; several: 512,768, or given again. Nothing: the full size.",
)
@click.option("--buckets", type=click.Choice(get_args(Method)), help="Whose rule picks a size for N; else casstore's.")
@click.option("--no-upscale", is_flag=True, help="Pictures that are smaller than N keep their size.")
@click.option("--role", "roles", multiple=True, help="What is encoded; repeated: the first, with the others.")
@click.option("--link", "links", multiple=True, metavar="ROLE=RULE", help="Which files go with each: caption=.txt")
@click.option("--reader", help="How caption files are read.")
@click.option(
    "--params", metavar="JSON", help="Further facts for the encoder, which tell results apart: '{\"frames\":16}'"
)
@click.option("--variations", type=click.IntRange(min=1), metavar="N", help="How many of each, with their own draws.")
@click.option("--name", "names", multiple=True, help="Of a tensor or value that must be there; may be given again.")
@click.option("--empty-text", is_flag=True, help="Of texts: the empty one as well, for guidance without a text.")
@click.option("--rebuild", is_flag=True, help="Where a --name is lacking, encode all names again.")
@click.option("--extensions", metavar=".A,.B", help="Endings of the files to take, instead of pictures.")
@click.option("--probe", metavar="P", help="package.module:function that tells the size and frames of a file.")
@click.option("--trust", is_flag=True, help="A quick check: known files aren't looked at, so edits may be missed.")
@click.option("--rehash", is_flag=True, help="Read every file again, whatever its size and times say.")
@click.option("--batch-size", type=click.IntRange(min=1), default=8, show_default=True, help="Items per encoder call.")
@click.option("--workers", type=click.IntRange(min=1), help="Decode threads; else one per core.")
@click.option(
    "--procs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes that build together."
)
@click.option(
    "--devices", metavar="A,B", help="A process for each, which finds its own in CASSTORE_DEVICE: cuda:0,cuda:1"
)
@click.option("--progress", type=click.Choice(["bar", "json", "none"]), help="On stderr; else a bar on a terminal.")
@click.option("--on-error", type=click.Choice(["skip", "raise"]), default="skip", show_default=True)
@click.option("--retry", is_flag=True, help="Also try pictures again that couldn't be decoded before.")
def build_command(
    folders: tuple[str, ...],
    place: str | None,
    as_json: bool,
    encoder: str,
    resolution: tuple[str, ...],
    buckets: Method | None,
    no_upscale: bool,
    roles: tuple[str, ...],
    links: tuple[str, ...],
    reader: str | None,
    params: str | None,
    variations: int | None,
    names: tuple[str, ...],
    empty_text: bool,
    rebuild: bool,
    extensions: str | None,
    probe: str | None,
    trust: bool,
    rehash: bool,
    batch_size: int,
    workers: int | None,
    procs: int,
    devices: str | None,
    progress: Literal["bar", "json", "none"] | None,
    on_error: Literal["skip", "raise"],
    retry: bool,
) -> int:
    """Encode what is new or changed in FOLDERs of files, or in tables of rows, and store it.

    What is stored already, wherever the file is by now and whatever it is called, is reused. Run it again after a stop:
    it goes on where it was. A FOLDER may be a .jsonl, .csv or .tsv file with a row per line.
    """
    wanted = resolutions_from(resolution, buckets, upscale=not no_upscale)
    told = params_from(params)
    scanning = scanning_from(roles, links, reader, extensions, probe, trust=trust, rehash=rehash)
    with open_store(place) as store:
        loaded = load_encoder(encoder)
        started = time.monotonic()
        given = {"--link": links, "--extensions": extensions, "--probe": probe, "--trust": trust, "--rehash": rehash}
        inputs, scanned = find_inputs(store, folders, scanning, given)
        plan = store.plan(
            inputs,
            loaded.recipe,
            role=roles or None,
            resolution=wanted,
            params=told,
            variations=variations,
            names=names or None,
            augment="rebuild" if rebuild else "add",
            empty_text=empty_text,
        )
        for warning in scanned.warnings if scanned is not None else ():
            note(f"warning  {warning}")
        for text in plan.notes:
            note(f"note     {text}")
        if not as_json:
            what = counted(len(inputs), "row" if roles else "file")
            note(f"scan     {what}{output.found_by(scanned)} in {seconds(time.monotonic() - started)}")
            note(f"plan     {output.planned_by(plan, retry=retry)}")
        showing = progress_from(progress)
        places = devices_from(devices, procs)
        try:
            if (plan.missing if retry else plan.to_encode) and (procs > 1 or places):
                report = build_in_processes(store, plan, len(places) or procs, places, showing)
            else:
                report = store.build(
                    plan,
                    loaded,
                    batch_size=batch_size,
                    workers=workers,
                    on_error=on_error,
                    retry_failed=retry,
                    progress=showing,
                )
        except BuildStopped as error:
            if error.report is not None:
                output.show(plan, error.report, time.monotonic() - started, as_json=as_json)
            raise
        output.show(plan, report, time.monotonic() - started, as_json=as_json)
    return 1 if report.failed or not report.planned else 0

"""The stages `training_set`, `ledger` and `exports/<kind>`: what is validated becomes the merged set and trainer files.

Here: which shards go in, cache keys, files and facts of the entries. Not here: merging (`merge`), formats (`exports`).
Entry `training_set`: the whole folder; `ledger`: file [ledger]; `export/<kind>`: the whole folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.fingerprint import export_fingerprint, training_set_fingerprint
from dflash_assets.replay.following import Replay
from dflash_assets.resources.manifest import plain_path
from dflash_assets.resources.store import Entry
from dflash_assets.tables import canonical_json, digest
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.training_set.certificate import ServerRender
from dflash_assets.training_set.contracts import ShardFiles, TokenFacts
from dflash_assets.training_set.existing_files import ExistingFiles
from dflash_assets.training_set.exports.base import ExportContext
from dflash_assets.training_set.exports.export import export
from dflash_assets.training_set.ledger import write_ledger
from dflash_assets.training_set.merge import build_training_set
from dflash_assets.workspace import Made, Workspace

MISSING_SHOWN = 20


def validated_shards(workspace: Workspace) -> tuple[list[tuple[int, Entry]], list[str]]:
    """Shards with good, current verdicts and their verdict entries; and the names of those that are planned but have none.

    Good: no hard rule is over its limit. Current: they judge the completions that are there.
    """
    entries = workspace.store.entries()
    current: list[tuple[int, Entry]] = []
    missing: list[str] = []
    for number in range(workspace.recipe.blend.shard_count):
        shard = f"shard-{number:05d}"
        prompts, completions, verdicts = (entries.get(f"{stage}/{shard}") for stage in ("prompts", "completions", "verdicts"))
        if prompts is None:
            continue
        if completions is None or verdicts is None:
            missing.append(shard)
        elif verdicts.facts["error"] is None and verdicts.facts["completions"] == completions.version:
            current.append((number, verdicts))
        else:
            missing.append(shard)
    return current, missing


def make_training_set(workspace: Workspace, tokenizer: Callable[[], TargetTokenizer], replay: Callable[[], Replay] | None = None) -> Made:
    """Merge all validated shards with the existing set. `tokenizer` is only asked for when there is something to do, `replay` when
    conversations were replayed.

    Raises TrainingSetError when shards are missing and the recipe says `incomplete: wait`, or when the sets don't fit.
    """
    recipe = workspace.recipe
    blend = workspace.entry("blend", make="blend")
    shards, missing = validated_shards(workspace)
    if missing and recipe.training_set.incomplete == "wait":
        shown = ", ".join(missing[:MISSING_SHOWN]) + (f" and {len(missing) - MISSING_SHOWN} more" if len(missing) > MISSING_SHOWN else "")
        raise TrainingSetError(
            f"{len(missing)} shard(s) have no valid verdicts: {shown}",
            todo="run again (only they are worked on), or set training_set.incomplete to take_validated",
        )
    renders = server_renders(workspace)
    key = digest(
        training_set_fingerprint(recipe),
        blend.facts["tokenizer_sha"],
        blend.facts["template_sha"],
        _existing_digest(workspace),
        *(f"{number}:{entry.version}" for number, entry in shards),
        *missing,
        canonical_json([asdict(render) for render in renders]),
    )
    found = workspace.found("training_set", key)
    if found is not None:
        return found
    facts = TokenFacts(
        tokenizer_sha=blend.facts["tokenizer_sha"],
        template_sha=blend.facts["template_sha"],
        vocab_size=blend.facts["vocab_size"],
        stop_token_ids=tuple(blend.facts["stop_token_ids"]),
        turn_marker_ids=tuple(blend.facts["turn_marker_ids"]),
        fingerprints={"model": recipe.target_model.name, "model_revision": recipe.target_model.revision or "", "blend": blend.version},
    )
    files = [shard_files(workspace, number) for number, _ in shards]
    with workspace.temporary("training_set") as folder:
        result = build_training_set(
            files,
            recipe.training_set,
            facts,
            folder / "set",
            base_dir=workspace.base_dir,
            seed=recipe.seed,
            on_length=recipe.generation.cut_answers,
            tokenizer=tokenizer(),
            server_renders=renders,
            replay=replay,
        )
        stored = workspace.store.put_folder(folder / "set", "training_set")
    manifest = result.manifest
    version = digest(*(f"{plain_path(file.path)}:{file.sha256}" for file in stored if not file.path.endswith("manifest.json")), length=16)
    kept = {name: manifest[name] for name in ("rows", "tokens", "supervised_tokens", "mix", "dropped", "drift", "warnings", "certificate")}
    kept["eval_rows"] = manifest["splits"]["eval"]["rows"]
    kept["existing_rows"] = manifest["accounting"].get("existing", {"kept": 0})["kept"]
    return workspace.keep("training_set", key, version, stored, {**kept, "missing_shards": missing})


SERVER_CHECK = "server_check/"
"""Name of the entries in which a start check keeps what a server rendered: facts {server, strata: {stratum: difference or null}}."""


def server_renders(workspace: Workspace) -> list[ServerRender]:
    """What the servers of this run rendered at their start, compared with ours."""
    return [
        ServerRender(entry.facts["server"], stratum, difference)
        for name, entry in sorted(workspace.store.entries().items())
        if name.startswith(SERVER_CHECK)
        for stratum, difference in sorted(entry.facts["strata"].items())
    ]


def shard_files(workspace: Workspace, number: int) -> ShardFiles:
    """Files of one validated shard."""
    shard = f"shard-{number:05d}"
    paths = [workspace.path(workspace.entry(f"{stage}/{shard}", make=stage)) for stage in ("prompts", "completions", "verdicts")]
    return ShardFiles(*paths, shard=number)


def training_set_folder(workspace: Workspace) -> Path:
    """Folder of the current training set. Raises MissingInput when there is none."""
    return workspace.folder(workspace.entry("training_set", make="training_set"))


def make_ledger(workspace: Workspace) -> Made:
    """The ledger over all sources. Raises TrainingSetError when its equation doesn't close."""
    recipe = workspace.recipe
    blend = workspace.entry("blend", make="blend")
    training = workspace.entry("training_set", make="training_set")
    sources = {source.name: workspace.entry(f"source/{source.name}", make=source.name) for source in recipe.sources}
    entries = workspace.store.entries()
    replayed = [entry for name, entry in sorted(entries.items()) if name.startswith("completions/") and entry.facts.get("conversations")]
    key = digest("ledger-2", blend.version, training.version, *(entry.version for entry in (*sources.values(), *replayed)))
    found = workspace.found("ledger", key)
    if found is not None:
        return found
    folder = training_set_folder(workspace)
    prompts = [workspace.path(entry) for name, entry in sorted(entries.items()) if name.startswith("prompts/shard-")]
    dropped = next(workspace.store.local(file.path) for file in blend.files if ".dropped." in f".{Path(file.path).name}")
    with workspace.temporary("ledger") as temporary:
        counts = write_ledger(
            temporary / "ledger.parquet",
            rejected=[workspace.path(entry, 1) for entry in sources.values()],
            blend_dropped=dropped,
            shard_prompts=prompts,
            kept=folder / "kept.parquet",
            dropped=folder / "dropped.parquet",
            rows_read={name: int(entry.facts["rows_read"]) for name, entry in sources.items()},
            shard_completions=[workspace.path(entry) for entry in replayed],
        )
        stored = workspace.put(temporary / "ledger.parquet", "ledger")
    return workspace.keep("ledger", key, stored.sha256[:16], (stored,), {"counts": counts})


def make_export(workspace: Workspace, kind: str, context: ExportContext) -> Made:
    """Write one export of the current training set."""
    training = workspace.entry("training_set", make="training_set")
    key = digest(export_fingerprint(workspace.recipe, kind), training.version)
    name = f"export/{kind}"
    found = workspace.found(name, key)
    if found is not None:
        return found
    spec = next(export for export in workspace.recipe.exports if export.kind == kind)
    with workspace.temporary(f"export-{kind.replace(':', '-')}") as folder:
        result = export(spec, training_set_folder(workspace), folder / "export", context)
        stored = workspace.store.put_folder(folder / "export", f"exports/{kind.replace(':', '-')}")
    version = digest(*(f"{plain_path(file.path)}:{file.sha256}" for file in stored), length=16)
    return workspace.keep(name, key, version, stored, {"rows": result.rows, "left_out": result.left_out, "notes": result.notes})


def _existing_digest(workspace: Workspace) -> str:
    """Digest of the existing set's files, so that a changed set is merged again."""
    existing = workspace.recipe.training_set.existing
    return "none" if existing is None else ExistingFiles(existing, workspace.base_dir).content_digest()

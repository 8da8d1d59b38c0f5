"""recipes/expansion_v1.yaml on generated data sets in the upstream schemas, from a local mirror, up to the finished blend.

    python -m benchmarks.full_size            # a twentieth of the size
    python -m benchmarks.full_size --full     # 265,000 rows of all seven sources: the blend must reach 193,010 prompts

The recipe is the one people run; only where things lie is changed: repositories become mirrors, the tokenizer a folder
with Qwen3.6's (from the test packages), the existing set and the hub revisions go. Duplicates, near-duplicates,
contaminated prompts and bad rows are planted. Prints the mix table, what was planted and dropped, CPU seconds and peak
memory of each step; ends with one line of JSON: value is the number of prompts reached.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.support.measure import ROOT, in_own_process, peak_mib
from benchmarks.support.prompts import Mirror

PROMPTS, SMALL = 193_010, 20


def main() -> None:
    """Generate, ingest, blend, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="full size")
    parser.add_argument("--keep", metavar="FOLDER", help="write data and recipe there and leave them")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        print(json.dumps({"source": ingest, "blend": blended}[chosen.child[0]](*chosen.child[1:])))
        return
    with tempfile.TemporaryDirectory(prefix="full-size-") as temporary:
        folder = Path(chosen.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        mirror = Mirror(folder, scale=1.0 if chosen.full else 1 / SMALL)
        mirror.write()
        recipe = write_recipe(folder, chosen.full)
        print(f"{sum(mirror.rows.values()):,} rows: {', '.join(f'{name} {rows:,}' for name, rows in mirror.rows.items())}")
        steps: dict[str, Any] = {}
        for name in mirror.rows:
            if name != "benchmarks":
                steps[name] = in_own_process("benchmarks.full_size", "source", str(recipe), name)
                print(f"  {name:18} {line(steps[name])}  {said(steps[name])}", flush=True)
        steps["blend"] = in_own_process("benchmarks.full_size", "blend", str(recipe))
        print(f"  {'blend':18} {line(steps['blend'])}  dropped: {steps['blend']['dropped']}\n")
        print(Path(steps["blend"]["mix"]).read_text())
    print(f"planted: {mirror.planted.counts}")
    for short in steps["blend"]["short"]:
        print(f"quota not met: {short}")
    rows, wanted = steps["blend"]["rows"], PROMPTS if chosen.full else round(PROMPTS / SMALL)
    checks = steps["blend"]["checks"]
    print(json.dumps({
        "name": "full size: prompts of expansion_v1 from generated data sets", "value": rows, "unit": "prompts", "target": wanted,
        "ok": rows == wanted and not any(checks.values()), "baseline": None, "rows_read": sum(mirror.rows.values()),
        "cpu_seconds": round(sum(step["cpu_seconds"] for step in steps.values()), 1), "wall_seconds": round(sum(step["seconds"] for step in steps.values()), 1),
        "peak_mib": max(step["peak_mib"] for step in steps.values()), "blend_cpu_seconds": steps["blend"]["cpu_seconds"], "checks": checks,
    }))  # fmt: skip
    sys.exit(0 if rows == wanted else 1)


def line(step: dict[str, Any]) -> str:
    """Figures of a step."""
    return f"{step['cpu_seconds']:6.1f} CPU-s  {step['seconds']:6.1f} s  {step['peak_mib']:7.1f} MiB"


def said(step: dict[str, Any]) -> str:
    """Rows of a source."""
    rejected = ", ".join(f"{reason} {count:,}" for reason, count in step["rejected"].items())
    return f"{step['rows_read']:,} = {step['accepted']:,} accepted" + (f" + {rejected}" if rejected else "")


def write_recipe(folder: Path, full: bool) -> Path:
    """expansion_v1 with local places."""
    from tests.support.qwen import qwen_folder

    recipe = yaml.safe_load((ROOT / "recipes" / "expansion_v1.yaml").read_text())
    recipe["store"] = str(folder / "store")
    recipe["target_model"]["tokenizer"] = f"dir:{qwen_folder('Qwen3.6')}"
    recipe["training_set"].pop("existing")
    recipe["blend"].pop("against_existing", None)
    for source in recipe["sources"]:
        hub = source["hub"]
        hub["mirror"], hub["repo"] = source["name"], hub["repo"] or "made/up"
        if not full and isinstance(source["take"], int):
            source["take"] = round(source["take"] / SMALL)
    if not full:
        recipe["blend"]["max_prompts"] = round(PROMPTS / SMALL)
    path = folder / "expansion_v1.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def workspace(recipe: Path) -> Any:
    """Workspace of the recipe."""
    from dflash_assets.recipe.load import load_recipe
    from dflash_assets.resources.store import open_store
    from dflash_assets.workspace import Workspace

    loaded = load_recipe(recipe)
    return Workspace(loaded, recipe.parent, open_store(loaded.store_root, loaded.name))


def ingest(recipe: str, name: str) -> dict[str, Any]:
    """One source."""
    from dflash_assets.sources.stage import make_source

    began = time.monotonic()
    found = workspace(Path(recipe))
    [source] = [source for source in found.recipe.sources if source.name == name]
    facts = make_source(found, source).entry.facts
    kept = {key: facts[key] for key in ("rows_read", "accepted", "rejected", "languages", "checks")}
    return {**kept, "seconds": time.monotonic() - began, "peak_mib": peak_mib()}


def blended(recipe: str) -> dict[str, Any]:
    """The blend of what was ingested."""
    from dflash_assets.assets.blend import shortfalls_said
    from dflash_assets.blend.stage import make_blend
    from dflash_assets.tokens.load import load_tokenizer

    began = time.monotonic()
    found = workspace(Path(recipe))
    entry = make_blend(found, load_tokenizer(found.recipe.target_model, found.base_dir)).entry
    return {
        "rows": entry.facts["rows"], "tokens": entry.facts["tokens"], "dropped": entry.facts["dropped"], "checks": entry.facts["checks"],
        "short": shortfalls_said(entry.facts), "mix": str(found.path(entry, 2)), "seconds": time.monotonic() - began, "peak_mib": peak_mib(),
    }  # fmt: skip


if __name__ == "__main__":
    main()

"""Finding the files of the target model's tokenizer and building it.

Here: the sources `hub`, `dir:PATH`, `gguf:PATH`, `package:NAME`. Not here: using the tokenizer (`tokenizer.py`),
weights. Code from a repository is never run (`trust_remote_code` doesn't exist here): tokenizer.json says it all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dflash_assets.errors import TokenizerError
from dflash_assets.recipe.model import TargetModel
from dflash_assets.resources.weights import WeightsError, locate_weights
from dflash_assets.tokens.gguf import load_gguf_tokenizer
from dflash_assets.tokens.template import ChatTemplate
from dflash_assets.tokens.tokenizer import TargetTokenizer

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
"""Files of a model repository that decide prompt ids and end tokens; the last two may be missing."""
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_tokenizer(model: TargetModel, base_dir: Path, *, mirror: Path | None = None) -> TargetTokenizer:
    """Tokenizer and chat template that the recipe names.

    `base_dir` is the recipe's folder. `mirror` is a folder laid out as `<mirror>/<owner>/<name>/tokenizer.json`; a model
    found there is taken from it instead of the hub. Raises TokenizerError that says what to do.
    """
    kind, _, place = model.tokenizer.partition(":")
    if kind == "hub":
        local = mirror / model.name if mirror else None
        return _from_folder(local if local and local.is_dir() else _from_hub(model), model)
    if kind == "dir":
        return _from_folder((base_dir / Path(place).expanduser()).resolve(), model)
    try:
        path = locate_weights(model.tokenizer, base_dir)
    except WeightsError as error:
        raise TokenizerError(str(error), where="target_model.tokenizer") from error
    found = load_gguf_tokenizer(path)
    template = ChatTemplate(found.chat_template, found.special_names, model.template_kwargs, where=str(path))
    end = found.tokenizer.token_to_id(found.special_names["eos_token"]) if "eos_token" in found.special_names else None
    return TargetTokenizer(found.tokenizer, template, () if end is None else (end,), fast=model.fast_tokenizer)


def _from_hub(model: TargetModel) -> Path:
    """Folder of the downloaded tokenizer files at the pinned revision, from the local cache when they are there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return Path(snapshot_download(model.name, revision=model.revision, allow_patterns=list(TOKENIZER_FILES)))
    except LocalEntryNotFoundError as error:
        raise TokenizerError(
            f"the tokenizer of {model.name} is not in the local cache and the hub can't be reached",
            where="target_model.tokenizer",
            todo="go online once, or name a local copy with `tokenizer: dir:PATH`",
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise TokenizerError(
            f"the hub knows no model {model.name} at revision {model.revision or 'main'} (or you have no access to it)",
            where="target_model",
            todo="correct `name` and `revision`, or log in with `hf auth login`",
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise TokenizerError(
            f"fetching the tokenizer of {model.name} failed: {error}",
            where="target_model.tokenizer",
            todo="try again, or name a local copy with `tokenizer: dir:PATH`",
        ) from error


def _from_folder(folder: Path, model: TargetModel) -> TargetTokenizer:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(
            "there is no tokenizer.json in this folder", where=str(folder), todo="save the tokenizer with transformers' save_pretrained"
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the Rust binding raises bare Exception for every unreadable file
        raise TokenizerError(f"tokenizer.json can't be read: {error}", where=str(file)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _json(folder / "tokenizer_config.json")
    names = {role: text for role in _ROLES if (text := _token_text(config.get(role))) is not None}
    template = ChatTemplate(_template_text(folder, config), names, model.template_kwargs, where=str(folder))
    ends = _json(folder / "generation_config.json").get("eos_token_id") or []
    stop = [*(ends if isinstance(ends, list) else [ends])]
    if "eos_token" in names and (end := tokenizer.token_to_id(names["eos_token"])) is not None:
        stop.append(end)
    return TargetTokenizer(tokenizer, template, stop, fast=model.fast_tokenizer)


def _template_text(folder: Path, config: dict[str, Any]) -> str:
    """The chat template: chat_template.jinja wins over tokenizer_config.json, as in transformers."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    text = config.get("chat_template")
    if isinstance(text, list):
        named = {entry.get("name"): entry.get("template") for entry in text if isinstance(entry, dict)}
        if set(named) != {"default"}:
            raise TokenizerError(
                f"there are several chat templates ({', '.join(sorted(map(str, named)))}), and which one a server takes depends on the request",
                where=str(folder),
                todo="put the one to use into chat_template.jinja",
            )
        text = named["default"]
    if not isinstance(text, str) or not text:
        raise TokenizerError("there is no chat template", where=str(folder), todo="put it into chat_template.jinja")
    return text


def _token_text(token: Any) -> str | None:
    return token.get("content") if isinstance(token, dict) else token if isinstance(token, str) else None


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"not valid JSON: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise TokenizerError("not a JSON object", where=str(path))
    return value

"""Reads an export with a trainer's own code and prints what the trainer would train on. Runs in the trainers' environment, not in ours.

    python read.py TRAINERS READER PATH [TOKENIZER]

TRAINERS holds the source trees SpecForge/ and speculators/. Prints one line of JSON: rows [[input_ids, loss_mask], ...] in the order read.
"""

import importlib.metadata
import json
import sys
from pathlib import Path


def specforge_pretokenized(path, _tokenizer):
    from specforge.data.prompt_builder import prepare_prompt_tasks

    tasks = prepare_prompt_tasks(
        path, None, chat_template=None, max_length=100_000, is_preformatted=False, train_only_last_turn=False, cache_dir=None,
        cache_key=None, num_proc=None,
    )  # fmt: skip
    return [[task["payload"]["input_ids"], task["payload"]["loss_mask"]] for task in tasks]


def specforge_conversations(path, tokenizer, *, preformatted=False):
    from specforge.data.prompt_builder import prepare_prompt_tasks
    from transformers import PreTrainedTokenizerFast

    loaded = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    tasks = prepare_prompt_tasks(
        path, loaded, chat_template="qwen3.5", max_length=100_000, is_preformatted=preformatted, train_only_last_turn=True, cache_dir=None,
        cache_key=None, num_proc=1,
    )  # fmt: skip
    return [[list(task["payload"]["input_ids"]), list(task["payload"]["loss_mask"])] for task in tasks]


def specforge_preformatted(path, tokenizer):
    return specforge_conversations(path, tokenizer, preformatted=True)


def speculators_raw(path, _tokenizer):
    """What prepare_data.py does with rows that carry ids and masks."""
    from speculators.data_generation.preprocessing import build_speculator_training_dataset, load_raw_dataset

    raw, _ = load_raw_dataset(path)
    done = build_speculator_training_dataset(raw, None, max_length=100_000, num_proc=1)
    return [[row["input_ids"].tolist(), row["loss_mask"].tolist()] for row in done]


def speculators_prepared(path, _tokenizer):
    """What train.py opens; its sampler needs the lengths, its client `.tolist()`."""
    from speculators.train.data import ArrowDataset, build_client_item

    dataset = ArrowDataset(100_000, path, on_missing="skip")
    rows = [dataset.data[index] for index in range(len(dataset))]
    assert dataset.approx_lengths == [len(row["input_ids"]) for row in rows]
    return [[build_client_item(row)["input_ids"], row["loss_mask"].tolist()] for row in rows]


def speculators_vocabulary(path, _tokenizer):
    """d2t and t2d that speculators makes of our token_freq.pt, beside those we wrote."""
    import numpy as np
    import torch
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    folder = Path(path)
    frequencies = torch.load(folder / "token_freq.pt", weights_only=True)
    ours = [np.load(folder / name) for name in ("d2t.npy", "t2d.npy")]
    theirs = build_vocab_mappings_from_distribution(frequencies, len(ours[0]), len(ours[1]))
    mapping = torch.load(folder / "vocab_mapping.pt", weights_only=True)
    return [
        [made.tolist(), other.tolist()]
        for one, other, name in zip(theirs, ours, ("d2t", "t2d"), strict=True)
        for made in (one, mapping[name])
    ]


def write_vocabulary(path, _tokenizer):
    """Our own writer where torch is installed, since the `.pt` forms need it: from counts.npy."""
    import numpy as np

    from dflash_assets.training_set.exports.vocabulary import write_vocabulary as write

    return write(Path(path), np.load(Path(path) / "counts.npy"), 50)


def main():
    trainers, reader, path, tokenizer = [*sys.argv[1:], ""][:4]
    root = Path(trainers)
    sys.path[:0] = [str(root / "SpecForge"), str(root / "speculators/src"), str(root / "speculators/hs_connectors/src")]
    real = importlib.metadata.version
    # A source tree has no package metadata, and speculators asks for its own version when it is imported.
    importlib.metadata.version = lambda name: "0" if name in ("speculators", "specforge", "hs-connectors") else real(name)
    print(json.dumps(globals()[reader](path, tokenizer)))


if __name__ == "__main__":
    main()

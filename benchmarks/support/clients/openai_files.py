"""Peer: AsyncOpenAI, one gather for each file of 500 prompts: the file is written when its last answer is there.

Runs in the peers' environment.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path

import openai
from usage import say  # the folder of this script is on the path


async def main(folder: Path, urls: list[str], size: int = 500, max_tokens: int = 4096) -> None:
    """Ask file after file."""
    clients = [openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600) for url in urls]
    model = json.loads((folder / "model.json").read_text())["model"]
    rows = map(json.loads, (folder / "prompts.jsonl").open())
    failed = 0

    async def ask(place: int, row: dict) -> dict | None:
        nonlocal failed
        try:
            reply = await clients[place % len(clients)].chat.completions.create(
                model=model, messages=row["messages"], max_tokens=max_tokens, temperature=1.0
            )
        except openai.APIError:
            failed += 1
            return None
        return {"id": row["id"], "text": reply.choices[0].message.content, "finish_reason": reply.choices[0].finish_reason}

    number = 0
    while part := list(itertools.islice(rows, size)):
        answers = await asyncio.gather(*(ask(place, row) for place, row in enumerate(part)))
        (folder / f"openai-{number:04d}.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers if answer))
        number += 1
    say(failed=failed, version=openai.__version__)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    asyncio.run(main(Path(order.pop("folder")), **order))

"""Peer: one AsyncOpenAI client for each server, one semaphore over all, a JSON Lines file; resumes by id. The usual script.

Runs in the peers' environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import openai
from usage import say  # the folder of this script is on the path


async def main(folder: Path, urls: list[str], in_flight: int = 512, max_tokens: int = 4096, ids: bool = False) -> None:
    """Ask everything that isn't in the output yet."""
    clients = [openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600) for url in urls]
    model = json.loads((folder / "model.json").read_text())["model"]
    out = folder / "openai.jsonl"
    done = {json.loads(line)["id"] for line in out.open()} if out.exists() else set()
    prompts = [row for row in map(json.loads, (folder / "prompts.jsonl").open()) if row["id"] not in done]
    semaphore, failed = asyncio.Semaphore(in_flight), 0
    extra = {"return_token_ids": True} if ids else {}

    with out.open("a") as lines:

        async def ask(place: int, row: dict) -> None:
            nonlocal failed
            async with semaphore:
                try:
                    reply = await clients[place % len(clients)].chat.completions.create(
                        model=model, messages=row["messages"], max_tokens=max_tokens, temperature=1.0, extra_body=extra
                    )
                except openai.APIError:
                    failed += 1
                    return
            choice = reply.choices[0]
            answer = {"id": row["id"], "text": choice.message.content, "finish_reason": choice.finish_reason}
            if ids:
                answer["output_ids"] = choice.model_extra["response_token_ids"]
            lines.write(json.dumps(answer) + "\n")

        await asyncio.gather(*(ask(place, row) for place, row in enumerate(prompts)))
    say(failed=failed, version=openai.__version__)


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    asyncio.run(main(Path(order.pop("folder")), **order))

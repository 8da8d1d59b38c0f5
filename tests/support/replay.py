"""What a server gets when ingested prompts are sent to it: bodies of the chat engine, recorded by the simulator."""

from __future__ import annotations

import asyncio
from typing import Any

from dflash_assets.resources.engines.base import GenerationRequest, SamplingParameters
from dflash_assets.resources.engines.openai_chat import OpenAIChatEngine
from dflash_assets.tables import canonical_json
from tests.support.simulated import simulated, small_tokenizer


def sent_bodies(conversations: list[list[dict[str, Any]]], *, model: str) -> list[dict[str, Any]]:
    """Send each conversation and return the request bodies that arrived, in order."""
    script = [{"json_content": "ok"} for _ in conversations]

    async def send(url: str) -> None:
        engine = OpenAIChatEngine(url, model=model, codec=small_tokenizer())
        await engine.start()
        for number, messages in enumerate(conversations):
            await engine.generate(
                GenerationRequest(
                    request_id=f"replay-{number}", prompt_ids=tuple(small_tokenizer().encode_prompt(messages, None, False)),
                    sampling=SamplingParameters(max_tokens=16, temperature=0.0, seed=None),
                    stop_token_ids=small_tokenizer().stop_token_ids, deadline_seconds=30.0, messages_json=canonical_json(messages), thinking=False,
                )
            )  # fmt: skip
        await engine.close()

    with simulated(script=script) as (url, server):
        asyncio.run(send(url))
        return list(server.bodies)

"""Bodies of the replies, field by field as a real SGLang 0.5.23 gave them.

Here: their shapes. Not here: what stands in them (`server.py`, `request.py`). Recorded from a server on a CPU with the flags
`--reasoning-parser qwen3 --tool-call-parser qwen3_coder`; tests/sglang compares them with such a server's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

VERSION = "0.5.23"
NOT_FOUND = {"detail": "Not Found"}
NOT_ALLOWED = {"detail": "Method Not Allowed"}
HTML = b"<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center></body></html>\n"
FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, "
    b"the operation will not be performed.)\n"
)


def error_object(message: str, status: int, kind: str | None = None) -> dict[str, Any]:
    """An error of the OpenAI routes, and of every route when the queue is full."""
    kind = kind or ("BadRequestError" if status == 400 else str(status))
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def generate_error(message: str) -> dict[str, Any]:
    """An error of `/generate`."""
    return {"error": {"message": message}}


def invalid_json(route: str, detail: str) -> dict[str, Any]:
    """A body that is no JSON."""
    return error_object(
        f"1 validation error:\n  {{'type': 'json_invalid', 'msg': 'JSON decode error'}}\n\n  {route}: {detail}", 400, "Bad Request"
    )


def generate_reply(
    text: str, ids: Sequence[int], rid: str, finish: Mapping[str, Any], prompt_tokens: int, received: float, queued: float, took: float
) -> dict[str, Any]:
    """`/generate`. `received` is a wall clock time, `queued` and `took` are seconds."""
    count = len(ids)
    ended = received + queued + took
    return {
        "text": text,
        "output_ids": ids,
        "meta_info": {
            "id": rid,
            "finish_reason": finish,
            "prompt_tokens": prompt_tokens,
            "weight_version": "default",
            "num_retractions": 0,
            "queue_time": queued,
            "reasoning_tokens": 0,
            "completion_tokens": count,
            "cached_tokens": 0,
            "weight_versions": [{"version": "default", "start": 0, "end": count}],
            "cached_tokens_details": None,
            "dp_rank": None,
            "e2e_latency": queued + took,
            "request_received_ts": received,
            "first_token_latency": queued,
            "decode_throughput": count / took if took else 0.0,
            "request_finished_ts": ended,
            "response_sent_to_client_ts": ended,
        },
    }


def chat_reply(
    model: Any, rid: str, message: Mapping[str, Any], finish: Mapping[str, Any], prompt_tokens: int, count: int, ids: Mapping[str, Any]
) -> dict[str, Any]:
    """`/v1/chat/completions`; `ids` holds the id fields that were asked for."""
    return {
        "id": rid,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": None,
                "finish_reason": finish["type"],
                "matched_stop": finish.get("matched"),
                **ids,
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + count,
            "completion_tokens": count,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
            "completion_tokens_details": None,
        },
        "metadata": {"weight_version": "default", "weight_versions": [{"version": "default", "start": 0, "end": count}]},
    }


def models(model: str, context_length: int) -> dict[str, Any]:
    """`/v1/models`."""
    entry = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "sglang", "root": model, "parent": None}
    return {"object": "list", "data": [{**entry, "max_model_len": context_length}]}


def loads(running: int, waiting: int, slots: int, used_tokens: int) -> dict[str, Any]:
    """`/v1/loads?include=core`: one data-parallel rank."""
    now = datetime.now(UTC)
    rank = {
        "timestamp": now.timestamp(),
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": used_tokens,
        "num_total_tokens": used_tokens,
        "num_active_tokens": used_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": 65536,
        "max_running_requests": slots,
        "token_usage": 0.0,
        "gen_throughput": 0.0,
        "cache_hit_rate": 0.0,
        "utilization": running / slots,
        "total_prefill_uncached_tokens": 0,
        "total_prefill_busy_us": 0,
        "decode_moments": [0.0] * 6,
    }
    return {"timestamp": now.isoformat(), "version": VERSION, "accelerator": None, "num_accelerators": 1, "loads": [rank]}


def model_info(model: str) -> dict[str, Any]:
    """`/model_info`."""
    return {
        "model_path": model,
        "served_model_name": model,
        "tokenizer_path": model,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": "qwen3",
        "tool_call_parser": "qwen3_coder",
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
    }


def server_info(model: str, slots: int, max_queued: int | None) -> dict[str, Any]:
    """`/server_info`: the fields of 300 that clients look at."""
    return {
        "model_path": model,
        "served_model_name": model,
        "version": VERSION,
        "status": "ready",
        "context_length": None,
        "max_running_requests": slots,
        "max_queued_requests": max_queued,
        "internal_states": [],
        "launch_command": "dflash_assets.simulator",
    }

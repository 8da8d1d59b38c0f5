"""What a launch section says without a look at the machine."""

from typing import Any

import pytest
from pydantic import ValidationError

from dflash_assets.recipe.generation import SglangEngine


def engine(*servers: dict[str, Any], api_key_env: str | None = None, **launch: Any) -> SglangEngine:
    return SglangEngine.model_validate({"kind": "sglang", "servers": servers, "launch": launch, "api_key_env": api_key_env})


def test_two_servers_of_four_gpus() -> None:
    made = engine(
        {"url": "http://127.0.0.1:30000", "gpus": [0, 1, 2, 3]}, {"url": "http://localhost:30007/v1", "gpus": [4, 5, 6, 7]}, data_parallel=4
    )
    assert made.launch is not None
    assert made.launch.on_run == "start"


@pytest.mark.parametrize(
    ("servers", "launch", "said"),
    [
        ([{"url": "http://127.0.0.1:30000"}, {"url": "http://localhost:30000"}], {}, "two launched servers have port 30000"),
        (
            [{"url": "http://127.0.0.1:30000", "gpus": [0]}, {"url": "http://127.0.0.1:30001", "gpus": [0]}],
            {},
            "GPU 0 is given to http://127.0.0.1:30000 and to http://127.0.0.1:30001",
        ),
        (
            [{"url": "http://127.0.0.1:30000", "gpus": [0, 1, 2]}],
            {"data_parallel": 2},
            "has 3 GPUs, but data_parallel x tensor_parallel = 2 x 1",
        ),
        ([{"url": "http://127.0.0.1"}], {}, "needs an http:// url with a port"),
        ([{"url": "https://127.0.0.1:30000"}], {}, "needs an http:// url"),
        ([{"url": "http://10.0.0.5:30000"}], {}, "is no loopback address"),
        ([{"url": "http://10.0.0.5:30000"}], {"listen": "0.0.0.0"}, "set api_key_env"),
    ],
)
def test_what_can_never_run_is_refused(servers: list[dict[str, Any]], launch: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        engine(*servers, **launch)


def test_other_addresses_need_a_key() -> None:
    made = engine({"url": "http://10.0.0.5:30000"}, listen="0.0.0.0", api_key_env="KEY")
    assert made.launch is not None


def test_gpus_are_not_counted_where_a_flag_changes_their_number() -> None:
    made = engine(
        {"url": "http://127.0.0.1:30000", "gpus": [0, 1]}, tensor_parallel=2, data_parallel=2, extra_flags=["--enable-dp-attention"]
    )
    assert made.servers[0].gpus == (0, 1)


@pytest.mark.parametrize(
    ("router", "key", "said"),
    [
        ("http://127.0.0.1", None, "a launched router needs a port"),
        ("http://10.0.0.5:30100", None, "the address that launch.listen names"),
        ("http://127.0.0.1:29999", None, "it takes this port and the next one, and a server has one of them"),
        ("http://127.0.0.1:30100", "KEY", "takes its API key on the command line only"),
    ],
)
def test_routers_that_could_not_be_launched(router: str, key: str | None, said: str) -> None:
    data = {"kind": "sglang", "servers": [{"url": "http://127.0.0.1:30000"}], "launch": {}, "router": {"url": router}, "api_key_env": key}
    with pytest.raises(ValidationError, match=said):
        SglangEngine.model_validate(data)
    assert SglangEngine.model_validate({**data, "launch": None}).router is not None, "one that runs already is only asked"

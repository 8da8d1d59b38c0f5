"""The simulated server keeps the contract that a real one keeps (tests/sglang runs the same tests on one)."""

from collections.abc import Iterator

import pytest

from dflash_assets.simulator.server import ServerSettings
from dflash_assets.tokens.tokenizer import TargetTokenizer
from tests.support.sglang_contract import SglangContract
from tests.support.simulated import NAME, answer_book, simulated, small_tokenizer

KEEP_ALIVE = 1.0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    settings = ServerSettings(
        NAME,
        context_length=4096,
        slots=SglangContract.slots,
        max_queued=SglangContract.queue,
        tokens_per_second=200.0,
        keep_alive_seconds=KEEP_ALIVE,
    )
    with simulated(settings, book=answer_book(1800.0, 0.1)) as (found, _server):
        yield found


class TestSimulator(SglangContract):
    keep_alive = KEEP_ALIVE

    @pytest.fixture
    def url(self, address: str) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return address

    @pytest.fixture
    def tokenizer(self) -> TargetTokenizer:  # pyright: ignore[reportIncompatibleMethodOverride]
        return small_tokenizer()

"""Sentences the simulated model says: plain English, and Chinese for prompts that are asked in it.

Here: texts. Not here: their ids (`pieces.py`) and how many of them make an answer (`answers.py`). Put together from parts, so that
a long answer doesn't repeat itself: a validator that looks for loops must find none.
"""

from __future__ import annotations

_BEGINNINGS = (
    "the first step", "a direct count", "this bound", "the second case", "the remaining sum", "each factor", "the given table",
    "a careful reading", "the smaller group", "our earlier estimate", "the next value", "a short check", "the last condition",
    "the inner loop", "this function", "the returned list", "a simple example", "the opposite direction", "the average rate",
    "the longest path", "every even number", "the outer radius", "a second pass", "the final term", "this small change",
    "the original question", "an exact match", "the lower half", "a missing key", "the sorted order", "the larger angle",
)  # fmt: skip
_MIDDLES = (
    "shows that", "means", "gives a reason why", "confirms that", "suggests", "depends on whether", "does not change how",
    "explains why", "would be wrong if", "makes it clear that", "holds because", "matters only when", "tells us that",
    "rests on the fact that", "agrees with the idea that", "leaves open whether", "is easier to see once", "follows since",
    "can be used because", "becomes useful when",
)  # fmt: skip
_ENDINGS = (
    "the total stays below twenty", "both sides have the same sign", "no element is visited twice", "the cost grows with the input",
    "the two lines never meet", "a single test is enough", "the result is rounded once", "an empty input is allowed",
    "the ratio is close to one third", "the units cancel", "every branch returns a value", "the order of terms is free",
    "the area doubles with the height", "half of the cases are covered", "the index starts at zero", "the error stays small",
    "the speed is constant", "all names are unique", "the sequence keeps growing", "one more digit is needed",
    "the answer is a whole number", "the set has no largest member", "the file was read before", "the weights add up to one",
    "the water level falls by a metre", "the price includes the tax", "the train arrives first", "a pair of values is missing",
    "the text ends with a full stop", "the message was sent in time", "the root lies between two and three",
)  # fmt: skip
_LINKS = ("so", "and then", "while", "but only if", "which is fine as long as", "because", "even though")
_SHORT = (
    "Yes.", "Done.", "It is so.", "That works.", "Let us see.", "Here is the answer.", "The short answer is yes.",
    "Okay, let me think about this.", "First, look at what is asked.", "Let me go through it step by step.",
)  # fmt: skip
_CHINESE = (
    ("第一步", "这个结果", "剩下的部分", "每个因子", "题目里的表格", "较小的一组", "下一个数值", "最后的条件", "内层循环", "返回的列表", "平均速度"),
    ("说明", "意味着", "可以证明", "并不影响", "取决于", "让我们看到", "与前面一致，因为", "只有在这种情况下才成立："),
    ("总数小于二十", "两边的符号相同", "没有元素被访问两次", "结果只取整一次", "允许空的输入", "单位可以约去", "误差一直很小", "答案是一个整数",
     "序列一直在增长", "所有名称都不相同", "价格已经含税", "水位下降了一米", "两条直线不会相交"),
)  # fmt: skip
COUNT = 1021
"""English sentences; a prime, so that steps of any size through the parts meet all of them."""
CHINESE_COUNT = 397


def openings() -> list[str]:
    """First sentences of a text, short and long, without a space before them."""
    return [*_SHORT, *(f"{sentence[1:]}" for sentence in sentences()[::7])]


def sentences() -> list[str]:
    """Sentences that follow another one, a space before each."""
    made: list[str] = []
    for number in range(COUNT):
        parts = [_capital(_BEGINNINGS[number % len(_BEGINNINGS)]), _MIDDLES[number % len(_MIDDLES)], _ENDINGS[number * 7 % len(_ENDINGS)]]
        if number % 3 == 0:
            parts += [_LINKS[number % len(_LINKS)], _ENDINGS[(number * 11 + 5) % len(_ENDINGS)]]
        made.append(f" {' '.join(parts)}.")
    return made


def chinese_lines() -> list[str]:
    """Chinese sentences, each on a line of its own: only so do their tokens not depend on what follows."""
    first, second, third = _CHINESE
    return [
        f"{first[number % len(first)]}{second[number % len(second)]}{third[number * 5 % len(third)]}。\n" for number in range(CHINESE_COUNT)
    ]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]

"""Replay of recorded conversations: every assistant turn is answered by the target model, on the model's own history.

The flow of one sample of one conversation:

1. Turn 0 is asked with the messages before the first recorded assistant message (`turns.opening`); the blend renders them.
2. Its answer is taken apart strictly. History + the model's own message + what was recorded until the next assistant message (tool
   results, a user turn) is the prompt of turn 1, and so on (`following`). Recorded answers never reach the model.
3. Tool results belong to recorded calls: the model's calls must be the recorded ones (`matching`), else the conversation stops
   there. What was answered until then is kept: each turn is a training row of its own.

Here: pure functions over messages, and `Replay`, which is given tokenizer and splitter. Not here: sending (`dflash_assets.generation`),
taking answers apart (`dflash_assets.validation`, handed in), recorded conversations (`dflash_assets.sources`).
"""

"""Tokens: the target model's tokenizer and chat template, exact prompt ids, and loss masks for text-only rows."""

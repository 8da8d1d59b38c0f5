"""What a recipe will take: prompts, tokens, disk, hours and money, before it runs and while it does."""

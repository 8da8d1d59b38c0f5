"""What several benchmarks share: simulated servers in a process of their own, prompts, peers in an environment of their own.

Here: set-up and counting. Not here: claims; each of them is a script in the folder above.
"""

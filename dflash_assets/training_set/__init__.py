"""Training set: accepted answers merged with an existing set, split, measured, and exported for trainers."""

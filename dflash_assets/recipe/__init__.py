"""The recipe: models of the YAML, loading with precise errors, fingerprints of the stages, published JSON Schema."""

"""The declared experiments: the Hydra configuration root, as YAML."""

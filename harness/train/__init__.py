"""The torch room: ranks, the model, its weights, the training loop and saves.

The only room of the harness that imports torch at module level, and the only one that imports
transformers. Nothing outside imports it: a rank is reached by command line alone.
"""

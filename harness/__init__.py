"""wattline: measure a multi-GPU full fine-tune honestly and watch it by its watts."""

__version__ = "0.1.0"

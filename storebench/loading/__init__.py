"""Batches from a store to the training loop: orders, augmentation, loaders."""

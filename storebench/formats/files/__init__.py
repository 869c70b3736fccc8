"""Image files in class folders: one file per sample."""

"""HDF5: one file that describes itself."""

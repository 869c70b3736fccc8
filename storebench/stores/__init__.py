"""Stores on disk: building them out of sight and publishing them whole, finding, verifying and inspecting them."""

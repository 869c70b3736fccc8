"""File formats that others define (JSON, TOML): read within bounds, written whole or not at all."""

"""Rules that results must hold to: what a careless reader, loader or machine would break."""

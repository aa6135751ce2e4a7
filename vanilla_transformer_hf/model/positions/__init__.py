"""Kinds of positions: added to embeddings, or acting on pairs of a query and a key."""

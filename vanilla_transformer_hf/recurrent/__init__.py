"""The recurrent models that preceded the Transformer."""

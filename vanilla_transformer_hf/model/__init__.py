"""All that travels with a saved model. These files import each other as `from .name import`, nothing else of ours."""

"""Small pictures for tests."""

import io

from PIL import Image, PngImagePlugin


def png(shade: int = 0, **metadata: str) -> bytes:
    """A PNG picture of 4 × 3 pixels of one shade of grey, with text fields."""
    fields = PngImagePlugin.PngInfo()
    for name, value in metadata.items():
        fields.add_text(name, value)
    file = io.BytesIO()
    Image.new("L", (4, 3), shade).save(file, "PNG", pnginfo=fields)
    return file.getvalue()

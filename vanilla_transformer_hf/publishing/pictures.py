"""Pictures of a model card, decoded and encoded again, so that only pixels are published."""

import io
import warnings

from PIL import Image, UnidentifiedImageError


def clean_picture(content: bytes, name: str) -> bytes:
    """A PNG picture with the same pixels and without metadata or anything after its end."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(content), formats=["PNG"])
            picture.load()
            pixels = Image.frombytes(picture.mode, picture.size, picture.tobytes())
            if picture.mode == "P":
                pixels.putpalette(picture.getpalette("RGBA") or [], "RGBA")
    except UnidentifiedImageError as error:
        raise ValueError(f"{name} is not a PNG picture.") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"{name} is not a complete PNG picture ({error}).") from error
    encoded = io.BytesIO()
    pixels.save(encoded, "PNG")
    return encoded.getvalue()
